"""The code in a completion, a fenced block or the text before a stop sequence; and scoring it by tests (pass@1)."""

import re
from collections.abc import Callable, Sequence

from lade.applications.bench.prompts import Prompt
from lade.applications.bench.scoring.sandbox import passes

# An opening fence is at the very beginning or names its language; a later bare fence closes a block.
FENCE = re.compile(r"(?:\A\s*```[\w+-]*|^```(?:python|py)\w*)[ \t]*\n(.*?)(?:^```|\Z)", re.DOTALL | re.MULTILINE)


def fenced(text: str) -> str | None:
    """The first block, if the first fence is an opening one; None otherwise."""
    found = FENCE.search(text)
    return found.group(1) if found and "```" not in text[: found.start()] else None


def until(text: str, stops: Sequence[str]) -> str:
    """The text before the first stop sequence."""
    return text[: min((place for place in map(text.find, stops) if place >= 0), default=len(text))]


def scorer(program: Callable[[Prompt, str], str]) -> Callable[[Prompt, str, bool], bool | None]:
    """Whether the program of a prompt and its completion passes; None if it must not be run."""

    def score(prompt: Prompt, completion: str, execute: bool) -> bool | None:
        return passes(program(prompt, completion)) if execute else None

    return score
