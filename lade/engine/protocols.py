"""What the decode loop needs of the room below it: a target, a store of prefixes, a budget of memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from lade.core.request import Request
from lade.core.stats import Clock
from lade.core.tree import Draft
from lade.target.outputs import Outputs


class Target(Protocol):
    """What computes trees: a model, or two of them for contrastive decoding.

    Attributes:
        undisturbed: whether nothing but lade has run since the last forward, so that the model is as it was.
    """

    undisturbed: bool

    @property
    def clock(self) -> Clock: ...

    @property
    def vocabulary(self) -> int:
        """The model reads token ids below this one."""
        ...

    @property
    def packed(self) -> bool:
        """Whether a forward takes trees of unequal sizes without padding."""
        ...

    @property
    def untimed(self) -> bool:
        """Whether the last forward took its time for once: a way to compute was tried, or captured."""
        ...

    def open(self, slot: int, tokens: int, most: int) -> None:
        """Start an empty sequence.

        Args:
            tokens: of the prompt.
            most: tokens of prompt and answer.
        """
        ...

    def close(self, slot: int) -> None:
        """Free a slot, also one whose opening failed."""
        ...

    def depth_limit(self, slot: int, remaining: int) -> int:
        """The largest depth of a draft in this slot, whose request may emit `remaining` more tokens.

        Negative where the model may have no position for the root.
        """
        ...

    def max_nodes(self, slots: Sequence[int]) -> int:
        """The most nodes that each draft in these slots may have, at least 1."""
        ...

    def forward(self, slots: Sequence[int], drafts: Sequence[Draft]) -> Outputs:
        """One forward of a draft in each of these slots."""
        ...

    def discard(self, slots: Sequence[int]) -> None:
        """Clear the keys and values that the last forward wrote in these slots."""
        ...

    def keep(self, slots: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        """Keep one path in each slot of the last forward, and drop all other nodes."""
        ...


class Rounds(Protocol):
    """Steps that a device drafts and computes by itself."""

    def next(self, requests: Sequence[Request]) -> tuple[list[Draft], Outputs] | None:
        """The next step of these requests: their drafts, and what was computed; `None` where the host is to draft."""
        ...

    def ended(self, requests: Sequence[Request]) -> None:
        """That step is over, whoever drafted it."""
        ...


class PrefixStore(Protocol):
    """Keys and values that outlive their requests."""

    def restore(self, slot: int, prompt: Sequence[int], tenant: str | None) -> int:
        """Fill an open, empty slot with the beginning of a prompt. Returns its tokens, fewer than the prompt's."""
        ...

    def keep(self, slot: int, text: Sequence[int], tenant: str | None) -> None:
        """Take what a slot holds, which is this text, before the slot is closed."""
        ...


class MemoryBudget(Protocol):
    """Bytes of keys and values, of which every open slot reserves what it may come to need."""

    def reserve(self, slot: int, tokens: int) -> bool:
        """Reserve memory for a slot of at most `tokens` of prompt and answer; false if too little is free."""
        ...

    def release(self, slot: int) -> None:
        """Give a slot's reservation back."""
        ...

    def max_nodes(self, slots: Sequence[int], held: Sequence[int]) -> list[int]:
        """The most nodes of each slot's tree, at least 1, so that a forward of these slots keeps to the reservations.

        Args:
            held: tokens that each slot holds.
        """
        ...
