"""Prompts, and reading them from JSON-lines files. Knows no tokenizer, model or task."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lade.base.shown import shown
from lade.files.jsonobject import json_object, read_lines
from lade.files.regularfile import MEBIBYTE

MAX_BYTES = 512 * MEBIBYTE
TEXT_KEYS = ("prompt", "text", "turns", "question")  # the first key present holds the prompt
ID_KEYS = ("prompt_id", "question_id", "task_id", "id")


@dataclass(frozen=True)
class Prompt:
    """One prompt.

    Attributes:
        turns: at least one text; each later one follows the answer to the one before.
        category: a part of the task, if the task has parts.
        answer: the data for scoring; None if there is nothing to score.
    """

    id: str | int
    turns: tuple[str, ...]
    category: str = ""
    answer: Any = None

    @property
    def text(self) -> str:
        return self.turns[0]


class PromptError(ValueError):
    """An invalid prompt file; the message names the file and the line."""


def read_prompts(path: Path, limit: int | None = None, offset: int = 0) -> list[Prompt]:
    """At most `limit` prompts after the first `offset`. An id defaults to the index in the file."""
    prompts: dict[str | int, Prompt] = {}
    for number, line in _lines(path):
        if limit is not None and len(prompts) == offset + limit:
            break
        prompt = _prompt(_object(line, path, number), len(prompts), f"{path}:{number}")
        if prompt.id in prompts:
            raise PromptError(f"{path}:{number}: prompt ids must be different, got {shown(prompt.id)} twice")
        prompts[prompt.id] = prompt
    if not prompts:
        raise PromptError(f"{path}: must hold at least one prompt")
    if len(prompts) <= offset:
        raise PromptError(f"{path}: holds {len(prompts)} prompts, none after the first {offset}")
    return list(prompts.values())[offset:]


def _lines(path: Path) -> list[tuple[int, str]]:
    try:
        return read_lines(path, MAX_BYTES)
    except ValueError as error:
        raise PromptError(str(error)) from error


def _object(line: str, path: Path, number: int) -> dict[str, object]:
    try:
        return json_object(line, f"{path}:{number}")
    except ValueError as error:
        raise PromptError(str(error)) from error


def _prompt(row: dict[str, object], index: int, where: str) -> Prompt:
    key = next((key for key in TEXT_KEYS if key in row), None)
    if key is None:
        raise PromptError(f"{where}: must have one of the keys {', '.join(TEXT_KEYS)}, got {', '.join(row) or 'none'}")
    prompt_id = next((row[key] for key in ID_KEYS if key in row), index)
    if isinstance(prompt_id, bool) or not isinstance(prompt_id, str | int):
        raise PromptError(f"{where}: the prompt id must be text or an integer, got {shown(prompt_id)}")
    category = row.get("category", "")
    if not isinstance(category, str):
        raise PromptError(f"{where}: the category must be text, got {shown(category)}")
    return Prompt(prompt_id, _turns(row[key], f"{where}: {key!r}"), category)


def _turns(value: object, where: str) -> tuple[str, ...]:
    """One text, or a list of texts."""
    texts = value if isinstance(value, list) else [value]
    turns = tuple(text for text in texts if isinstance(text, str) and text.strip())
    if not texts or len(turns) < len(texts):
        raise PromptError(f"{where} must be a text or a list of texts, none empty, got {shown(value)}")
    return turns
