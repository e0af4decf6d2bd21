"""One sequence being generated, and the result of verifying one draft of it. Knows no model and no cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Request:
    """One sequence being generated.

    Attributes:
        row: its row in the user's batch.
        tokens: prompt and emitted tokens, without padding; the last one is the root of the next tree.
        prompt_length: number of prompt tokens.
        limit: the most tokens that it may emit.
        finished: whether a stop rule has ended it.
        slot: of the target's KV cache; its row if not given.
        max_nodes: the most nodes of its next draft, the root included.
        state: the drafter's, set by `Drafter.start`.
    """

    row: int
    tokens: list[int]
    prompt_length: int
    limit: int
    finished: bool = False
    slot: int = -1
    max_nodes: int = 1 << 30
    state: Any = None

    def __post_init__(self) -> None:
        if self.slot < 0:
            self.slot = self.row

    @property
    def emitted(self) -> int:
        return len(self.tokens) - self.prompt_length


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of the verification walk: `tokens[i]` was chosen after node `path[i]`; path[0] is the root."""

    path: list[int]
    tokens: list[int]
