"""`lade skip-search` from the command line: the file it writes, what it says, and what it refuses."""

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from families import BRANCHABLE
from stories import PROMPTS
from tiny import tiny_model
from unbranchable import UNBRANCHABLE

import lade
from lade.applications.skip_search import command
from lade.models.shipped import STORIES


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS[:2]))
    return path


def search(prompts: Path, out: Path, *arguments: object) -> Result:
    base = [STORIES, "--prompts", prompts, "--out", out, "--max-new-tokens", 8, "--threads", 1]
    return CliRunner().invoke(command, [str(argument) for argument in [*base, *arguments]])


def test_the_set_is_written_and_taken(prompts: Path, tmp_path: Path) -> None:
    out = tmp_path / "sets" / "skip.json"
    result = search(prompts, out, "--trials", 3)
    assert result.exit_code == 0, result.output
    entry = json.loads(out.read_text())
    assert entry["measured"]["trials"] == 3
    assert {"tokens_per_second", "with_nothing_left_out", "plain_decoding", "machine", "max_new_tokens"} <= set(
        entry["measured"]
    )
    found = lade.self_speculative(layers=out).layers
    assert (list(found.attention), list(found.mlp)) == (entry["attention"], entry["mlp"])
    assert f"left out: attention {entry['attention']}, MLP {entry['mlp']}" in result.stdout
    again = search(prompts, out, "--trials", 4)  # goes on
    assert again.exit_code == 0, again.output
    assert json.loads(out.read_text())["measured"]["trials"] == 4


def test_wrong_arguments_are_named_before_any_work(prompts: Path, tmp_path: Path) -> None:
    assert "--out must end in .json, got" in search(prompts, tmp_path / "set.txt").stderr
    assert "missing.jsonl" in search(tmp_path / "missing.jsonl", tmp_path / "set.json").stderr
    assert "Invalid value for '--trials'" in search(prompts, tmp_path / "set.json", "--trials", 0).stderr
    assert "Invalid value for '--draft-adapt'" in search(prompts, tmp_path / "set.json", "--adapt", "often").stderr
    (tmp_path / "set.json").write_text("{}")
    assert "--out must be a new file, got" in search(prompts, tmp_path / "set.json").stderr
    assert not (tmp_path / "set.journal").exists()
    (tmp_path / "other.journal").mkdir()
    assert "other.journal: must be a regular file" in search(prompts, tmp_path / "other.json").stderr
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.journal")
        assert "pipe.journal: must be a regular file" in search(prompts, tmp_path / "pipe.json").stderr


@pytest.mark.parametrize(
    ("name", "refused"), [("bloom", "one that can verify a draft tree"), ("gpt2", "one whose layers add their")]
)
def test_a_model_that_cannot_draft_for_itself_is_refused(
    name: str, refused: str, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    families = {family.name: family for family in (*BRANCHABLE, *UNBRANCHABLE)}
    model = tiny_model(families[name], "eager")
    for layer in model.get_decoder().h if name == "gpt2" else ():
        monkeypatch.setattr(layer.mlp, "forward", lambda hidden, residual: hidden + residual)
    monkeypatch.setattr("lade.applications.skip_search.load_model", lambda *_, **__: (model, None))
    result = search(prompts, tmp_path / "set.json")
    assert result.exit_code == 2
    assert "Invalid value for 'MODEL': " in result.stderr
    assert refused in result.stderr
    assert list(tmp_path.iterdir()) == [prompts]


def test_a_journal_of_other_options_is_refused(prompts: Path, tmp_path: Path) -> None:
    assert search(prompts, tmp_path / "set.json", "--trials", 1).exit_code == 0
    result = search(prompts, tmp_path / "set.json", "--trials", 1, "--tokens", 3)
    assert result.exit_code == 2
    assert "holds trials with options" in result.stderr
    assert search(prompts, tmp_path / "set.json", "--trials", 1, "--tokens", 3, "--overwrite").exit_code == 0
