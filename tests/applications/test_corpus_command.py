"""`lade corpus`: which texts it takes, what it tells, and that the corpus is drafted from."""

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

import lade
from lade.applications import cli, corpora
from lade.memory.corpora import corpus_of
from lade.memory.corpusfile import load_corpus
from lade.models import load
from lade.models.load import load_tokenizer
from lade.models.shipped import STORIES

ONE, OTHER = "Once upon a time", "Lily had a red ball"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli.main, ["corpus", STORIES, *map(str, arguments)])


def tokens(*texts: str) -> list[list[int]]:
    tokenizer = load_tokenizer(STORIES)
    return [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]


def test_files_folders_and_lines(tmp_path: Path) -> None:
    """In the order of the arguments, of folders by name; hidden files and what is no text are left out."""
    folder = tmp_path / "folder"
    (folder / "deeper").mkdir(parents=True)
    (folder / ".git").mkdir()
    (folder / "b.py").write_text(OTHER)
    (folder / "a.bin").write_bytes(b"\xff\xfe\x00")
    (folder / "empty").touch()
    (folder / ".git" / "hidden").write_text(ONE)
    (folder / "deeper" / "c.jsonl").write_text(f'{{"text": "{ONE} there"}}\n\n{{"text": "", "more": 1}}\n')
    (folder / "deeper" / "d.jsonl").write_text('{"prompt": "no text"}')
    (tmp_path / "first.txt").write_text(ONE)
    out = tmp_path / "made" / "corpus.safetensors"
    done = run(tmp_path / "first.txt", folder, "--out", out)
    assert done.exit_code == 0, done.output
    expected = tokens(ONE, OTHER, f"{ONE} there")
    assert load_corpus(out, 512).ints.tolist() == corpus_of(expected).tolist()
    counted = f"texts: 3; tokens: {sum(map(len, expected))}; files left out, which are no text: 3"
    assert done.output == f"{counted}\n{out} ({out.stat().st_size:,} bytes)\n"


def test_answers_that_it_holds_take_fewer_steps(tmp_path: Path) -> None:
    model, tokenizer = load(STORIES)
    ids = tokenizer(ONE, return_tensors="pt").input_ids
    asked = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "max_new_tokens": 64, "do_sample": False}

    def answer(corpus: Path | None) -> tuple[list[int], int]:
        config = lade.LookaheadConfig(budget=16, adapt=False, sources=("corpus",), corpus=corpus)
        return lade.generate(model, **asked, config=config)[0].tolist(), lade.last_stats().steps

    plain, steps = answer(None)
    assert steps > 60  # one token each
    (tmp_path / "answer.txt").write_text(tokenizer.decode(plain, skip_special_tokens=True))
    assert run(tmp_path / "answer.txt", "--out", tmp_path / "corpus.safetensors").exit_code == 0
    found, steps = answer(tmp_path / "corpus.safetensors")
    assert found == plain
    assert steps <= 8


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"\xff\xfe\x00")
    done = run(tmp_path / "text", "--out", tmp_path / "corpus.safetensors")
    assert (done.exit_code, done.output.count("\n")) == (1, 1)
    assert f"Error: {tmp_path / 'text'}: is not UTF-8 text" in done.output


@pytest.mark.parametrize(
    ("line", "message"),
    [('{"prompt": "a"}', "c.jsonl:1: 'text' must be text, got None"), ("[", "c.jsonl:1: is not JSON")],
)
def test_a_wrong_line(line: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text(line)
    done = run(tmp_path / "c.jsonl", "--out", tmp_path / "corpus.safetensors")
    assert done.exit_code == 1
    assert message in done.output
    assert not (tmp_path / "corpus.safetensors").exists()


def test_no_further_text_is_read_once_there_is_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lade.memory.corpora.MOST", 3)
    (tmp_path / "a").write_text(ONE)
    (tmp_path / "b.jsonl").write_text("[")
    done = run(tmp_path / "a", tmp_path / "b.jsonl", "--out", tmp_path / "corpus.safetensors")
    assert done.exit_code == 1
    assert "texts must hold 1 to 3 tokens, got " in done.output


def test_no_text_at_all(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"\xff\xfe\x00")
    done = run(tmp_path, "--out", tmp_path / "corpus.safetensors")
    assert done.exit_code == 1
    told = f"PATHS must hold at least one text, got {tmp_path}; files left out, which are no text: 1"
    assert done.output == f"Error: {told}\n"


def test_wrong_usage(tmp_path: Path) -> None:
    """Before anything is read or loaded."""
    (tmp_path / "text").write_text(ONE)
    there = tmp_path / "there.safetensors"
    there.touch()
    for arguments, message in (
        ((tmp_path / "none", "--out", there), "does not exist"),
        ((tmp_path / "text", "--out", tmp_path / "corpus.bin"), "--out must end in .safetensors"),
        ((tmp_path / "text", "--out", there), "--overwrite replaces it"),
    ):
        done = run(*arguments)
        assert done.exit_code == 2
        assert message in done.output
    assert run(tmp_path / "text", "--out", there, "--overwrite").exit_code == 0
    assert there.stat().st_size > 0


def test_a_large_corpus_awaits_machine_code(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    monkeypatch.setattr("lade.entry.warming.begin_compiling", lambda: begun.append("begun"))
    monkeypatch.setattr("lade.drafters.compiling.wait", lambda: begun.append("awaited"))
    for aloud, expected in ((4, []), (3, ["begun", "awaited"])):
        monkeypatch.setattr(corpora, "ALOUD", aloud)
        corpora.made([[1, 2], [3, 4]])
        assert begun == expected
