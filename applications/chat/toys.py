"""What the small models that ship can do, said where a chat begins. Knows no model class."""

from __future__ import annotations

from pathlib import Path

from lade.models.pulled import PULLABLE, is_pulled, not_pulled
from lade.models.shipped import NAMES, STORIES

REAL = next(iter(PULLABLE))
CODE_PROMPT = "def sum_of_squares(numbers):"
STORY_PROMPT = "Once upon a time, there was a little girl named Lily."


def suggestion(name: str) -> str | None:
    """A prompt that a small model continues well; `None` for other models."""
    if name not in NAMES:
        return None
    return STORY_PROMPT if name == STORIES else CODE_PROMPT


def notice(name: str, has_template: bool) -> list[str]:
    """Lines for the beginning of a chat with a model that holds no conversation."""
    if name not in NAMES:
        return [] if has_template else ["The model has no chat template: messages are sent as plain text."]
    subject = "children's stories" if name == STORIES else "Python code"
    whole = f"`lade chat {REAL}`" if is_pulled(REAL) else f"`lade chat {REAL}`; {not_pulled(REAL)}"
    return [
        f"{name} is a small model that continues {subject}. It knows no questions, and no earlier messages.",
        f"Try: {suggestion(name)}",
        f"A model for conversations: {whole}.",
    ]


def name_of(path_or_name: str) -> str:
    """How a model is called here: the last part of a folder's path, or its name."""
    return Path(path_or_name).name if Path(path_or_name).is_dir() else path_or_name
