"""One sequence being generated, and what a step decided about it. Knows nothing about models or caches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Request:
    """One row of a batch.

    Attributes:
        row: its row in the user's batch.
        tokens: the text so far without padding, prompt first; the last one is the root of the next tree.
        prompt_length: how many of them are the prompt.
        limit: the most tokens it may emit.
        finished: whether a stop rule has fired.
        room: the most nodes that its next draft may have, the root included.
        state: what the drafter remembers about it.
    """

    row: int
    tokens: list[int]
    prompt_length: int
    limit: int
    finished: bool = False
    room: int = 1 << 30
    state: Any = None

    @property
    def emitted(self) -> int:
        return len(self.tokens) - self.prompt_length


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the walk through one draft decided: `path[i]` is the node that chose `tokens[i]`; path[0] is the root."""

    path: list[int]
    tokens: list[int]
