"""Prompt files: what is read, and what every bad line is told."""

from pathlib import Path

import pytest

from lade.applications.bench.prompts import Prompt, PromptError, read_prompts


def written(folder: Path, *lines: str) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_every_known_key_and_id(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        '{"prompt": "a\\u2028b", "prompt_id": "first"}',
        "",
        '{"text": "b", "task_id": 7}',
        '{"question_id": 81, "turns": ["c", "later"], "category": "writing"}',
        '{"question": "d", "answer": "e"}',
    )
    assert read_prompts(path) == [
        Prompt("first", ("a\u2028b",)),
        Prompt(7, ("b",)),
        Prompt(81, ("c", "later"), "writing"),
        Prompt(3, ("d",)),
    ]
    assert read_prompts(path)[2].text == "c"


def test_the_limit_leaves_later_lines_unread(tmp_path: Path) -> None:
    assert read_prompts(written(tmp_path, '{"prompt": "a"}', "broken"), limit=1) == [Prompt(0, ("a",))]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"prompts.jsonl:2: is not JSON"),
        ("[1]", r"prompts.jsonl:2: must be a JSON object, got list"),
        ('{"answer": 1}', r"prompts.jsonl:2: must have one of the keys prompt, text, turns, question, got answer"),
        ("{}", r"prompts.jsonl:2: must have one of the keys .*, got none"),
        ('{"prompt": " "}', r"prompts.jsonl:2: 'prompt' must be a text or a list of texts, none empty, got"),
        ('{"prompt": 5}', r"prompts.jsonl:2: 'prompt' must be a text or a list of texts, none empty, got"),
        ('{"turns": []}', r"prompts.jsonl:2: 'turns' must be a text or a list of texts, none empty, got"),
        ('{"turns": ["b", ""]}', r"prompts.jsonl:2: 'turns' must be a text or a list of texts, none empty, got"),
        ('{"turns": ["b", 5]}', r"prompts.jsonl:2: 'turns' must be a text or a list of texts, none empty, got"),
        ('{"prompt": "b", "category": 1}', r"prompts.jsonl:2: the category must be text, got 1"),
        ('{"prompt": "b", "id": 1.5}', r"prompts.jsonl:2: the prompt id must be text or an integer, got 1.5"),
        ('{"prompt": "b", "id": 0}', r"prompts.jsonl:2: prompt ids must be different, got 0 twice"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(PromptError, match=message):
        read_prompts(written(tmp_path, '{"prompt": "a"}', line))


def test_files_that_hold_no_prompts(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match="must hold at least one prompt"):
        read_prompts(written(tmp_path, ""))
    with pytest.raises(PromptError, match=r"missing.jsonl: cannot be read \(No such file"):
        read_prompts(tmp_path / "missing.jsonl")
    with pytest.raises(PromptError, match="cannot be read"):
        read_prompts(tmp_path)
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PromptError, match="is not UTF-8"):
        read_prompts(binary)


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "marked.jsonl").write_bytes('{"prompt": "é"}\n'.encode("utf-8-sig"))
    (prompt,) = read_prompts(tmp_path / "marked.jsonl")
    assert prompt.text == "é"
