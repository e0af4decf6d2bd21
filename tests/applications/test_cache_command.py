"""`lade cache` from the command line: what it lists, and what it removes when told to."""

import json
import os
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from lade.applications.cache import command
from lade.files.cachecontent import KINDS
from lade.files.safefile import write
from lade.memory.warm import warming as warm
from lade.models import load
from lade.models.shipped import STORIES


def run(*arguments: str, answer: str | None = None) -> Result:
    return CliRunner().invoke(command, list(arguments), input=answer)


@pytest.fixture
def cache(table_folder: Path) -> Path:
    """One entry of each kind, of 10 bytes or some more; foreign files beside them."""
    (table_folder / "presets").mkdir(parents=True)
    (table_folder / "pulled" / "tiny").mkdir(parents=True)
    (table_folder / "compiled" / "0123").mkdir(parents=True)
    tensors, metadata = {"one": torch.zeros(1)}, {"model": "/somewhere/told"}
    write(table_folder / "warm2-aa-bb.safetensors", tensors, metadata)
    (table_folder / "presets" / "mine.json").write_text('{"model": "/somewhere/tuned"}')
    ends = (".lade-1.tmp", "warmpart-aa.safetensors", "cost1-ab.safetensors", "pulled/a.whl", "pulled/tiny/config.json")
    for name in (*ends, "compiled/0123/code", "notes.txt"):
        (table_folder / name).write_bytes(bytes(10))
    for path in table_folder.rglob("*"):
        os.utime(path, (1000.0, 1000.0))
    return table_folder


def listed() -> dict[str, str | None]:
    """Kinds and models of the entries."""
    return {entry["kind"]: entry["model"] for entry in json.loads(run("--json").stdout)["entries"]}


def test_an_empty_folder_is_told(table_folder: Path) -> None:
    result = run()
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        f"{table_folder}: 0 entries, 0.0 MB",
        "0 entries, 0.0 MB of 2,147.5 MB (LADE_CACHE_SIZE) without presets and models",
    ]
    assert not table_folder.exists()


def test_every_kind_is_listed_with_its_model(cache: Path) -> None:
    result = run()
    for name in ("tables", "told", "warm2-aa-bb.safetensors", "presets/mine.json", "pulled/tiny", "1970-01-01"):
        assert name in result.stdout
    assert "notes.txt" not in result.stdout
    assert f"{cache}: 8 entries, " in result.stdout
    assert "6 entries, 0.0 MB of 2,147.5 MB" in result.stdout
    models = {"tables": "told", "parts": "told", "presets": "tuned", "models": "tiny"}
    assert listed() == {kind: models.get(kind) for kind in KINDS}


def test_listing_is_no_use_of_a_file(cache: Path) -> None:
    run()
    assert {path.stat().st_mtime for path in cache.glob("*.safetensors")} == {1000.0}


def test_a_broken_file_has_no_model(cache: Path) -> None:
    (cache / "warm2-aa-bb.safetensors").write_text("junk")
    (cache / "presets" / "mine.json").write_text("junk")
    assert [listed()[kind] for kind in ("tables", "parts", "presets")] == [None, None, None]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_blocks_nothing(cache: Path) -> None:
    (cache / "warm2-aa-bb.safetensors").unlink()
    os.mkfifo(cache / "warm2-aa-bb.safetensors")
    assert listed()["tables"] is None


@pytest.mark.parametrize("kind", KINDS)
def test_one_kind_is_cleared(kind: str, cache: Path) -> None:
    result = run("--clear", kind, "--yes", "--json")
    assert result.exit_code == 0
    assert [entry["kind"] for entry in json.loads(result.stdout)["removed"]] == [kind]
    assert set(listed()) == set(KINDS) - {kind}
    assert "removed: 1 entry, " in result.stderr


def test_without_a_kind_models_and_presets_stay(cache: Path) -> None:
    assert run("--clear", "--yes").exit_code == 0
    assert set(listed()) == {"models", "presets"}
    assert run("--clear", "all", "--yes").exit_code == 0
    assert listed() == {}
    assert (cache / "notes.txt").is_file()


@pytest.mark.parametrize(("answer", "status"), [("n\n", 1), ("", 2)])
def test_nothing_is_removed_without_a_yes(answer: str, status: int, cache: Path) -> None:
    result = run("--clear", answer=answer)
    assert result.exit_code == status
    assert ("--yes must be given with --clear" in result.stderr) == (status == 2)
    assert (
        f"Remove 6 entries, 0.0 MB (unfinished, parts, tables, costs, compiled, downloads) from {cache}?"
        in result.stderr
    )
    assert set(listed()) == set(KINDS)
    assert run("--clear", answer="y\n").exit_code == 0
    assert set(listed()) == {"models", "presets"}


def test_ctrl_c_at_the_question_removes_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("click.termui._readline_prompt", interrupt)
    result = run("--clear")
    assert result.exit_code == 130
    assert "Aborted" not in result.stderr
    assert set(listed()) == set(KINDS)


def test_an_unknown_kind_is_told_the_kinds(cache: Path) -> None:
    result = run("--clear", "everything")
    assert result.exit_code == 2
    assert all(kind in result.stderr for kind in KINDS)


@pytest.mark.usefixtures("short_texts")
def test_a_table_tells_its_model_and_its_use(table_folder: Path) -> None:
    model, tokenizer = load(STORIES)
    warm.warm_up(model, top=2, tokenizer=tokenizer)
    assert listed() == {"tables": STORIES}
    (path,) = table_folder.glob("warm*")
    os.utime(path, (1000.0, 1000.0))
    assert warm.cached(load(STORIES)[0], tokenizer=tokenizer) is not None
    assert path.stat().st_mtime > 1000.0


@pytest.mark.usefixtures("short_texts")
def test_a_new_table_pushes_the_oldest_out(table_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LADE_CACHE_SIZE", "1")
    for dtype in ("float32", "bfloat16"):
        warm.warm_up(load(STORIES, dtype=dtype)[0], top=2)
        assert len(list(table_folder.glob("warm[0-9]-*"))) == 1
    assert warm.cached(load(STORIES, dtype="bfloat16")[0]) is not None
    assert warm.cached(load(STORIES, dtype="float32")[0]) is None
