"""Prompts by the names of suites or from a file, and who judges the answers. The suites have tests of their own."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from lade.applications.bench import promptsets
from lade.applications.bench.prompts import Prompt
from lade.applications.bench.promptsets import DEFAULT_SUITES, from_file, from_suites, read_ids
from lade.applications.bench.scoring.sandbox import SandboxError
from lade.applications.bench.suites import SUITES, Suite, SuiteError


@dataclass(frozen=True)
class Right:
    text: str


def load() -> list[Prompt]:
    return [Prompt(index, (f"Question {index}",), answer=Right(str(index))) for index in range(5)]


def absent() -> list[Prompt]:
    raise SuiteError("absent: no prompts: there is no file")


def judge(prompt: Prompt, text: str, execute: bool) -> bool | None:
    return (prompt.answer.text == text) if execute else None


@pytest.fixture(autouse=True)
def suites(monkeypatch: pytest.MonkeyPatch) -> None:
    for suite in (
        Suite("sums", load, "none", judge),
        Suite("code", load, "none", judge, executes=True),
        Suite("talk", load, "none"),
        Suite("absent", absent, "none"),
    ):
        monkeypatch.setitem(SUITES, suite.name, suite)


def test_a_part_of_each_suite_is_taken() -> None:
    sums, talk = from_suites("sums, talk", limit=2, offset=1, execute=False)
    assert [(source.name, [prompt.id for prompt in source.prompts]) for source in (sums, talk)] == [
        ("sums", [1, 2]), ("talk", [1, 2]),
    ]  # fmt: skip
    assert len(from_suites("sums", None, 3, False)[0].prompts) == 2
    assert sums.digest == talk.digest != from_suites("sums", 2, 0, False)[0].digest


def test_prompts_are_chosen_by_their_ids(tmp_path: Path) -> None:
    path = tmp_path / "ids.jsonl"
    path.write_text('{"suite": "sums", "id": 4}\n{"suite": "talk", "id": 0}\n{"suite": "sums", "id": 1}\n')
    sums, talk = from_suites("sums,talk", None, 0, False, read_ids(path))
    assert [[prompt.id for prompt in source.prompts] for source in (sums, talk)] == [[1, 4], [0]]
    with pytest.raises(ValueError, match="suite sums: has no prompt 9"):
        from_suites("sums", None, 0, False, {"sums": [1, 9]})
    with pytest.raises(ValueError, match="--ids must name at least one prompt of suite code, got none"):
        from_suites("code", None, 0, False, read_ids(path))
    for line in ('{"suite": "sums"}', '{"suite": 3, "id": 1}', '{"suite": "sums", "id": true}', "{"):
        path.write_text(f"{line}\n")
        with pytest.raises(ValueError, match=r"ids\.jsonl:1"):
            read_ids(path)


def test_code_is_judged_only_where_it_may_run() -> None:
    sums, code, talk = from_suites("sums,code,talk", 1, 0, execute=False)
    assert (code.score, code.unscored) == (None, True)
    assert (talk.score, talk.unscored) == (None, False)
    assert sums.score is not None
    assert sums.score(sums.prompts[0], "0") is None  # what the suite says where nothing may run
    allowed = from_suites("code", 1, 0, execute=True)[0]
    assert allowed.score is not None
    assert [allowed.score(allowed.prompts[0], text) for text in ("0", "1")] == [True, False]
    assert not allowed.unscored


def test_code_that_cannot_be_run_safely_is_no_surprise_behind_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(program: str) -> bool:
        raise SandboxError("this machine does not confine it")

    monkeypatch.setattr(promptsets, "passes", fails)
    with pytest.raises(ValueError, match="--execute: this machine does not confine it"):
        from_suites("sums,code", 1, 0, execute=True)
    assert len(from_suites("sums,talk", 1, 0, execute=True)) == len(from_suites("code,talk", 1, 0, execute=False)) == 2


def test_a_file_is_a_source_too(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "a"}\n{"turns": ["b", "c"]}\n')
    (source,) = from_file(path, None, 1)
    assert (source.name, source.prompts, source.score) == ("mine", (Prompt(1, ("b", "c")),), None)


@pytest.mark.parametrize(
    ("names", "offset", "message"),
    [
        ("", 0, "--suite must be at least one of mt_bench"),
        ("sums,warp", 0, "--suite must be among mt_bench"),
        ("sums,sums", 0, "--suite must name different suites, got 'sums' twice"),
        ("sums", 5, "suite sums: holds 5 prompts, none after the first 5"),
        ("sums,absent", 0, "absent: no prompts: there is no file"),
    ],
)
def test_what_cannot_be_had_is_named(names: str, offset: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_suites(names, 2, offset, execute=False)


def test_the_usual_suites_ship() -> None:
    for source in from_suites(DEFAULT_SUITES, 5, 0, execute=True):
        assert len(source.prompts) == 5
        assert source.score is not None
