"""`lade warm` from the command line: what it keeps, what it says, and what it refuses."""

import errno
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tiny import tiny_model
from unbranchable import UNBRANCHABLE

import lade
from lade.applications import warm_prompts
from lade.applications.warm import command
from lade.files.cachefolder import CacheWarning
from lade.memory.warm import warming as warm
from lade.memory.warm.file import table_file
from lade.models import load
from lade.models.shipped import STORIES

pytestmark = pytest.mark.usefixtures("one_thread", "table_folder", "short_texts")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in (*arguments, "--threads", 1)])


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    names = ("Lily", "Tom", "Ben", "Mia", "Anna", "Max")
    lines = [json.dumps({"prompt": f"One day, {name} went to the park with a dog"}) for name in names]
    path.write_text("\n".join([*lines, json.dumps({"turns": ["Once upon a time", "And then?"]})]))
    return path


def test_the_table_is_kept_where_generate_finds_it(table_folder: Path) -> None:
    result = run(STORIES, "--device", "cpu")
    assert result.exit_code == 0, result.output
    (path,) = table_folder.iterdir()
    table = warm.cached(load("stories260K")[0])
    assert table is not None
    assert table.tokens.shape == (512, 16)
    known = f"512 entries and {len(table.contexts.endings)} contexts"
    assert f"16 tokens after each of {known}: computed in {table.seconds:.2f} s" in result.stdout
    assert f"{path} ({path.stat().st_size:,} bytes)" in result.stdout


def test_a_second_run_computes_nothing(table_folder: Path) -> None:
    first = run(STORIES, "--top", 4)
    (path,) = table_folder.iterdir()
    written = path.stat().st_ino
    second = run(STORIES, "--top", 4)
    assert second.stdout == first.stdout.replace("computed", "found in the cache, computed")
    said = "computing the warm table" in first.stderr, "computing the warm table" in second.stderr
    assert said == (True, False)
    assert path.stat().st_ino == written
    third = run(STORIES, "--top", 8)
    assert "8 tokens after each of 512 entries and " in third.stdout
    assert "contexts: computed" in third.stdout


def test_each_dtype_has_its_own_table(table_folder: Path) -> None:
    for dtype in ("float32", "bfloat16"):
        assert "contexts: computed" in run(STORIES, "--dtype", dtype).stdout
    assert len(list(table_folder.iterdir())) == 2
    assert warm.cached(load("stories260K", dtype="bfloat16")[0]) is not None


def test_wrong_arguments_are_named_before_any_work(tmp_path: Path, table_folder: Path) -> None:
    assert "nowhere" in run(tmp_path / "nowhere").stderr
    assert "Invalid value for '--top'" in run(STORIES, "--top", 0).stderr
    assert "Invalid value for '--device'" in run(STORIES, "--device", "abacus").stderr
    assert not table_folder.exists()
    result = run(STORIES, "--top", 513)
    assert result.exit_code == 2
    assert "top must be an integer from 1 to 512" in result.stderr


def test_a_folder_that_takes_no_table_is_an_error(table_folder: Path) -> None:
    table_folder.write_text("a file where the folder should be")
    result = run(STORIES)
    assert result.exit_code == 1
    assert "cannot be made (File exists); set LADE_CACHE to another folder" in result.stderr


def test_a_folder_in_the_table_s_place_is_no_table(table_folder: Path) -> None:
    table_file(load(STORIES)[0]).mkdir(parents=True)
    with pytest.warns(CacheWarning, match="lade ignores"):
        done = run(STORIES)
    assert done.exit_code == 1
    assert "Error: lade keeps the warm table in memory only: " in done.stderr


@pytest.mark.filterwarnings("default")
def test_a_full_disk_is_told_once_and_ends_the_computation(table_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("lade.memory.warm.part.PAUSE", 0.0)
    monkeypatch.setattr("lade.memory.warm.resumefile.write", full)
    done = run(STORIES)
    assert done.exit_code == 1
    assert done.stderr.count("No space left") == 1
    assert not done.stdout
    assert warm.cached(load(STORIES)[0]) is None


# The user's own prompts


def test_prompts_add_contexts(table_folder: Path, prompts: Path) -> None:
    result = run(STORIES, "--prompts", prompts, "--max-new-tokens", 8)
    assert result.exit_code == 0, result.output
    table, own = warm.cached(load(STORIES)[0]), warm.own_table(load(STORIES)[0])
    assert table is not None
    more = len(table.contexts.endings) - len(own.contexts.endings)
    assert f"contexts: computed in {table.seconds:.2f} s" in result.stdout
    assert f"contexts that answers to the prompts added: {more}; prompts: 7\n" in result.stdout
    (path,) = table_folder.glob("*-prompts.safetensors")
    assert f"{path} ({path.stat().st_size:,} bytes)" in result.stdout
    again = run(STORIES, "--prompts", prompts, "--max-new-tokens", 8)
    assert "contexts: found in the cache, computed in " in again.stdout
    assert f"{path} (" in run(STORIES).stdout


def test_what_they_win_is_measured_on_prompts_that_are_held_out(prompts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, counted_stats = list[list[int]](), list[lade.GenerationStats]()
    generate = lade.generate

    def counted(model: Any, ids: Any, **arguments: Any) -> Any:
        asked.append(ids[0].tolist())
        found = generate(model, ids, **arguments)
        counted_stats.append(lade.last_stats())
        return found

    monkeypatch.setattr(warm_prompts.lade, "generate", counted)
    result = run(STORIES, "--prompts", prompts, "--max-new-tokens", 8, "--hold-out")
    assert result.exit_code == 0, result.output
    assert "; prompts: 6\n" in result.stdout
    model, tokenizer = load(STORIES)
    without, with_them = counted_stats
    assert without.warm_table == warm.own_table(model).digest
    assert with_them.warm_table == warm.cached(model).digest != without.warm_table
    figures = [with_them.tokens_per_step, without.tokens_per_step]
    assert (
        "prompts held out: 1; tokens per step on them, 32 tokens in a forward: "
        "{:.2f} with these contexts, {:.2f} without, {:.2f}×\n".format(*figures, figures[0] / figures[1])
    ) in result.stdout
    assert asked == [tokenizer("One day, Anna went to the park with a dog").input_ids] * 2


def test_equal_prompts_are_all_held_out(tmp_path: Path) -> None:
    """A prompt that the table knows would say nothing about others."""
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(json.dumps({"text": text}) for text in ("a b", "c d", "e f", "a b", "a b")))
    assert "; prompts: 2\n" in run(STORIES, "--prompts", path, "--max-new-tokens", 4, "--hold-out").stdout


def test_one_prompt_given_again_and_again_cannot_be_held_out(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join([json.dumps({"text": "a b"})] * 5))
    result = run(STORIES, "--prompts", path, "--hold-out")
    assert result.exit_code == 2
    assert "--hold-out must be given with prompts that differ" in result.stderr


def test_prompts_that_do_not_fit_are_counted(prompts: Path) -> None:
    with prompts.open("a") as file:
        file.write("\n" + json.dumps({"prompt": "word " * 600}))
    result = run(STORIES, "--prompts", prompts, "--max-new-tokens", 8)
    assert "; prompts: 7; prompts that do not fit the model: 1\n" in result.stdout
    alone = prompts.with_name("long.jsonl")
    alone.write_text(json.dumps({"prompt": "word " * 600}))
    result = run(STORIES, "--prompts", alone)
    assert result.exit_code == 2
    assert "no prompt of the file fits the model's 512 positions" in result.stderr


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ('{"prompt": ""}', ":2: 'prompt' must be a text or a list of texts, none empty, got ''"),
        ('{"answer": "1"}', ":2: must have one of the keys prompt, text, turns, question, got answer"),
        ('{"prompt": ', ":2"),
    ],
)
def test_a_bad_file_is_named_before_any_work(line: str, named: str, tmp_path: Path, table_folder: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a"}\n' + line)
    result = run(STORIES, "--prompts", path)
    assert result.exit_code == 2
    assert "Invalid value for '--prompts'" in result.stderr
    assert f"{path}{named}" in " ".join(result.stderr.split())
    assert not table_folder.exists()


@pytest.mark.parametrize("arguments", [("--hold-out",), ("--n", 3)])
def test_options_of_prompts_need_them(arguments: tuple[object, ...], table_folder: Path) -> None:
    result = run(STORIES, *arguments)
    assert result.exit_code == 2
    assert f"{arguments[0]} must be given with --prompts" in result.stderr
    assert not table_folder.exists()


def test_few_prompts_cannot_be_held_out(prompts: Path) -> None:
    result = run(STORIES, "--prompts", prompts, "--n", 4, "--hold-out")
    assert result.exit_code == 2
    assert "--hold-out must be given with 5 prompts that fit the model, got 4" in result.stderr


@pytest.mark.parametrize("with_prompts", [False, True])
def test_a_model_that_decodes_no_trees_is_refused_before_any_work(
    with_prompts: bool, prompts: Path, table_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (kind,) = (kind for kind in UNBRANCHABLE if kind.name == "bloom")
    tokenizer = load("stories260K")[1]
    monkeypatch.setattr("lade.applications.warm.load_model", lambda *_, **__: (tiny_model(kind), tokenizer))
    result = run(STORIES, *(("--prompts", prompts) if with_prompts else ()))
    assert result.exit_code == 1
    assert "Error: model must be one that decodes draft trees (ALiBi" in result.stderr
    assert list(table_folder.iterdir()) == []
