"""Prompts, and how they are read from JSON-lines files. Knows nothing of tokenizers, models or tasks."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lade.base.shown import shown
from lade.files.jsonobject import json_object, read_lines
from lade.files.regularfile import MEBIBYTE

MOST = 512 * MEBIBYTE  # of a file
TEXT_KEYS = ("prompt", "text", "turns", "question")  # the first one present is the prompt
ID_KEYS = ("prompt_id", "question_id", "task_id", "id")


@dataclass(frozen=True)
class Prompt:
    """What a model is asked.

    turns: at least one text; a later one is asked when the one before it has been answered.
    category: part of its task, where the task has parts.
    answer: what scoring needs to know; None where there is nothing to score.
    """

    id: str | int
    turns: tuple[str, ...]
    category: str = ""
    answer: Any = None

    @property
    def text(self) -> str:
        return self.turns[0]


class PromptError(ValueError):
    """A prompt file that cannot be used; the message names the file and the line."""


def read_prompts(path: Path, limit: int | None = None, offset: int = 0) -> list[Prompt]:
    """At most `limit` prompts behind the first `offset`. An id defaults to the place in the file."""
    prompts: dict[str | int, Prompt] = {}
    for number, line in _lines(path):
        if limit is not None and len(prompts) == offset + limit:
            break
        prompt = _prompt(_object(line, path, number), len(prompts), f"{path}:{number}")
        if prompt.id in prompts:
            raise PromptError(f"{path}:{number}: the prompt id {shown(prompt.id)} stands twice in the file")
        prompts[prompt.id] = prompt
    if not prompts:
        raise PromptError(f"{path}: holds no prompt")
    if len(prompts) <= offset:
        raise PromptError(f"{path}: holds {len(prompts)} prompts, none behind the first {offset}")
    return list(prompts.values())[offset:]


def _lines(path: Path) -> list[tuple[int, str]]:
    try:
        return read_lines(path, MOST)
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
        raise PromptError(f"{where}: none of the keys {', '.join(TEXT_KEYS)}; it has {', '.join(row) or 'no keys'}")
    prompt_id = next((row[key] for key in ID_KEYS if key in row), index)
    if isinstance(prompt_id, bool) or not isinstance(prompt_id, str | int):
        raise PromptError(f"{where}: the prompt id {shown(prompt_id)} is neither text nor an integer")
    category = row.get("category", "")
    if not isinstance(category, str):
        raise PromptError(f"{where}: the category {shown(category)} is not text")
    return Prompt(prompt_id, _turns(row[key], f"{where}: {key!r}"), category)


def _turns(value: object, where: str) -> tuple[str, ...]:
    """One text, or a list of them."""
    texts = value if isinstance(value, list) else [value]
    turns = tuple(text for text in texts if isinstance(text, str) and text.strip())
    if not texts or len(turns) < len(texts):
        raise PromptError(f"{where} holds {'a turn without' if len(texts) > 1 else 'no'} text")
    return turns
