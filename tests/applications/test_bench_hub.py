"""Prompts from the hub, with a stand-in for the package that reads it; nothing here reaches for a network."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lade.applications.bench.suites import SUITES, SuiteError
from lade.applications.bench.suites.hub import ROWS


class Stream:
    """As many rows as anybody takes."""

    def take(self, count: int) -> Iterator[dict[str, Any]]:
        return ({"id": str(number), "document": f"text {number}"} for number in range(count))


class Hub:
    """Stands in for the package `datasets` and for the door that is knocked on."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.door: Callable[[], Any] = lambda: SimpleNamespace(status_code=200)
        self.answer: Callable[[], Any] = Stream

    def load_dataset(self, *arguments: Any, **options: Any) -> Any:
        self.asked.append((arguments, options))
        return self.answer()

    def head(self, url: str, timeout: float) -> Any:
        self.asked.append(url)
        return self.door()


def fail(error: Exception) -> Callable[[], Any]:
    def raising() -> Any:
        raise error

    return raising


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    found = Hub()
    monkeypatch.setenv("LADE_DATA", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "https://hub.test")
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=found.load_dataset))
    monkeypatch.setattr("huggingface_hub.get_session", lambda: found)
    return found


def test_the_first_rows_are_streamed(hub: Hub) -> None:
    prompts = SUITES["xsum"].load()
    assert len(prompts) == ROWS
    assert (prompts[7].id, prompts[7].text) == ("7", "Summarize: text 7\nSummary:")
    options = {"split": "validation", "revision": "refs/convert/parquet", "streaming": True}
    assert hub.asked == ["https://hub.test", (("EdinburghNLP/xsum", "default"), options)]


def test_translations_from_the_hub_are_not_taken_for_the_local_ones(hub: Hub) -> None:
    rows = [{"translation": {"en": "Rain", "de": "Regen"}}]
    hub.answer = lambda: SimpleNamespace(take=lambda count: rows)
    (prompt,) = SUITES["wmt_ende"].load()
    assert prompt.id == "newstest2014/0"
    assert prompt.text == "Translate the input English sentence into German.\nInput: Rain\nOutput: "


def test_an_answer_that_is_an_error_is_an_answer(hub: Hub) -> None:
    hub.door = lambda: SimpleNamespace(status_code=405)
    assert len(SUITES["xsum"].load()) == ROWS


@pytest.mark.parametrize("error", [OSError("no route"), TimeoutError("too late")])
def test_where_nobody_answers_nothing_is_loaded(hub: Hub, error: Exception) -> None:
    hub.door = fail(error)
    reason = r"the hub's EdinburghNLP/xsum cannot be read \(.*hub\.test does not answer"
    with pytest.raises(SuiteError, match=rf"xsum: no prompts: .*{reason}"):
        SUITES["xsum"].load()
    assert hub.asked == ["https://hub.test"]


def test_what_the_transport_raises_is_told(hub: Hub) -> None:
    class TransportError(Exception):
        """Of no kind that this project knows."""

    hub.answer = fail(TransportError("cut off"))
    with pytest.raises(SuiteError, match=r"cannot be read \(TransportError: cut off\)"):
        SUITES["cnn_dm"].load()


def test_without_the_package(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(SuiteError, match=r"needs the package datasets, .*pip install 'lade-decoding\[hub\]'"):
        SUITES["cnn_dm"].load()
    assert not hub.asked


def test_offline_nobody_is_asked(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(SuiteError, match="is not used, because HF_HUB_OFFLINE is set"):
        SUITES["xsum"].load()
    assert not hub.asked
