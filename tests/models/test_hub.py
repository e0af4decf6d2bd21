"""Models of the hub, with a stand-in for its client: asked once, then its cache, then an error that names the model."""

import shutil
import socket
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from lade.models import load
from lade.models.hub import ask, on_hand
from lade.models.shipped import FOLDER, STORIES

NAME = "owner/tells-stories"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float]]:
    """A hub that answers; collects how it was asked."""
    found: list[tuple[str, float]] = []

    def head(url: str, timeout: float) -> Any:
        found.append((url, timeout))
        return SimpleNamespace(status_code=403)

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "https://hub.test")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_ETAG_TIMEOUT", 10)
    monkeypatch.setattr("huggingface_hub.get_session", lambda: SimpleNamespace(head=head))
    return found


@pytest.fixture
def silent(asked: list[tuple[str, float]], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A hub that nobody reaches."""
    tried: list[str] = []

    def head(url: str, timeout: float) -> Any:
        tried.append(url)
        raise ConnectionError("no route")

    monkeypatch.setattr("huggingface_hub.get_session", lambda: SimpleNamespace(head=head))
    return tried


@pytest.fixture
def downloads(tmp_path: Path) -> Path:
    """The hub's cache folder, with the story model as if it had been downloaded under another name."""
    kept = tmp_path / "hub" / "models--owner--tells-stories"
    (kept / "refs").mkdir(parents=True)
    (kept / "refs" / "main").write_text("abc")
    shutil.copytree(FOLDER / STORIES, kept / "snapshots" / "abc")
    return tmp_path / "hub"


def test_a_hub_that_answers_is_left_to_the_loading_itself(asked: list[tuple[str, float]], tmp_path: Path) -> None:
    """Whatever it answers; a model in its cache is not preferred to what it gives now."""
    assert on_hand(NAME, tmp_path) == NAME
    assert asked == [("https://hub.test", 5)]


def test_a_name_that_cannot_be_asked_for_is_told_after_one_try(silent: list[str], tmp_path: Path) -> None:
    with pytest.raises(OSError, match=rf"got '{NAME}': no folder .*hub\.test does not answer \(ConnectionError: no"):
        load(NAME, cache_dir=tmp_path)
    assert silent == ["https://hub.test"]


def test_what_was_downloaded_loads_where_the_hub_is_silent(silent: list[str], downloads: Path) -> None:
    model, tokenizer = load(NAME, cache_dir=downloads)
    assert model.num_parameters() == 260_032
    assert tokenizer("Once").input_ids
    assert silent == ["https://hub.test"]


def test_offline_nobody_is_asked(asked: list[Any], downloads: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert Path(on_hand(NAME, downloads)) == downloads / "models--owner--tells-stories" / "snapshots" / "abc"
    with pytest.raises(OSError, match=r"got 'owner/other': .* HF_HUB_OFFLINE is set"):
        on_hand("owner/other", downloads)
    assert asked == []


def test_folders_and_models_that_ship_ask_nobody(silent: list[str]) -> None:
    assert load(STORIES)[0].num_parameters() == load(FOLDER / STORIES)[0].num_parameters()
    assert silent == []


def test_a_command_names_the_model(silent: list[str]) -> None:
    import click

    from lade.applications.options import load_model

    with pytest.raises(click.ClickException, match=f"{NAME} does not load: .*got '{NAME}'"):
        load_model(NAME, dtype=None, device="cpu")


def test_the_hub_s_own_client_gives_up_at_once_where_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with socket.socket() as bound:  # but not listening
        bound.bind(("127.0.0.1", 0))
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{bound.getsockname()[1]}")
        with pytest.raises(OSError, match=r"127\.0\.0\.1:\d+ does not answer \(ConnectError"):
            ask()


def test_the_hub_s_own_client_takes_any_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:  # which knows no HEAD: 501
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setattr(BaseHTTPRequestHandler, "log_message", lambda *_: None)
        thread = Thread(target=server.handle_request)
        thread.start()
        ask()
        thread.join()
