"""What a chat decodes with and shows. Checked as it is set; knows no model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

from lade.base.coldest import ALLOWED, is_temperature
from lade.base.environment import OFF, ON
from lade.base.shown import invalid

NONE = "none"


@dataclass(frozen=True)
class ChatSettings:
    """Settings of a chat; `/set NAME VALUE` changes one.

    Attributes:
        temperature: 0 decodes greedily, more samples.
        top_p: sample from the fewest tokens whose probabilities add up to this.
        top_k: sample from this many most likely tokens; 0 for all.
        seed: of the first sampled answer; each one after it adds 1. `None` for random ones.
        max_new_tokens: new tokens per answer, at most.
        plain: decode one token per forward.
        stats: show a line of statistics after each answer.
        color: colour the tokens that a step accepted together.
        markdown: show answers as Markdown.

    Raises:
        ValueError: names the setting, what it must be and its value.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    max_new_tokens: int = 512
    plain: bool = False
    stats: bool = False
    color: bool = False
    markdown: bool = False

    def __post_init__(self) -> None:
        for name, (allowed, holds) in RULES.items():
            if not holds(getattr(self, name)):
                raise invalid(name, allowed, getattr(self, name))

    def with_text(self, name: str, text: str) -> ChatSettings:
        """The settings with one changed, as a user writes it. ValueError as above, or for an unknown name."""
        if name not in NAMES:
            raise ValueError(f"the setting must be one of {', '.join(NAMES)}, got {name!r}")
        try:
            value = READERS[name](text)
        except ValueError:
            allowed = RULES[name][0] if name in RULES else "on or off"
            raise invalid(name, allowed, text) from None
        return replace(self, **{name: value})

    def lines(self) -> list[str]:
        """One line per setting."""
        return [f"{name} {_written(getattr(self, name))}" for name in NAMES]

    def sampling(self) -> dict[str, Any]:
        """The arguments of `generate` that choose tokens."""
        if self.temperature == 0:
            return {"do_sample": False, "temperature": None, "top_k": None, "top_p": None}
        return {"do_sample": True, "temperature": self.temperature, "top_k": self.top_k, "top_p": self.top_p}


RULES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "temperature": (ALLOWED, is_temperature),
    "top_p": ("a number above 0 and at most 1", lambda value: 0 < value <= 1),
    "top_k": ("an integer of at least 0", lambda value: value >= 0),
    "seed": (f"an integer of at least 0, or {NONE}", lambda value: value is None or 0 <= value < 1 << 63),
    "max_new_tokens": ("an integer of at least 1", lambda value: value >= 1),
}


def _switch(text: str) -> bool:
    if text.lower() not in (*ON, *OFF):
        raise ValueError
    return text.lower() in ON


def _seed(text: str) -> int | None:
    return None if text.lower() == NONE else int(text)


NAMES = tuple(field.name for field in fields(ChatSettings))
READERS: dict[str, Callable[[str], Any]] = {
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "seed": _seed,
    "max_new_tokens": int,
    **dict.fromkeys(("plain", "stats", "color", "markdown"), _switch),
}


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return NONE if value is None else f"{value:g}" if isinstance(value, float) else str(value)
