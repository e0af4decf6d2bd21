"""A budget of bytes for keys and values: every open slot reserves all that its slab may grow to.

Knows how the KV cache of a target grows (`lade.target.store`), no request.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from lade.core.tree import Draft
from lade.target import layers as sizes
from lade.target.call import UNLIMITED
from lade.target.model import HFTarget
from lade.target.pieces import Piece
from lade.target.store import LayerGroup


@dataclass(frozen=True, slots=True)
class LayerBytes:
    """Layers with one window.

    Attributes:
        token_bytes: of the keys and values of one token in all of them.
        window: tokens that a slot stores at most, those of its tree included; `None` for all of its text.
    """

    token_bytes: int
    window: int | None = None

    def bytes(self, tokens: int) -> int:
        """The most that the slab of a text of this length takes."""
        most = tokens + sizes.SLACK
        return self.token_bytes * (most if self.window is None else min(most, self.window))


class KVBudget:
    """Reservations of the open slots of one target.

    Args:
        limit: bytes.
        layers: all that the target has.
        packed: whether every slab has a capacity of its own; otherwise all have the longest one's.
        nodes: the most that a forward adds to a slot.
    """

    def __init__(self, limit: int, layers: Sequence[LayerBytes], packed: bool, nodes: int) -> None:
        self.limit, self._layers, self._packed, self._nodes = limit, layers, packed, nodes
        self._tokens: dict[int, int] = {}  # of each slot's prompt and answer
        self._longest = 0  # of them since no slot was open, where not packed: slabs do not shrink

    @classmethod
    def of(cls, target: HFTarget, limit: int, nodes: int) -> KVBudget:
        """For a target with no slot open; computes a forward of one token, which shows what a token takes."""
        target.open(0, 1, 1)
        try:
            target.compute([0], [Piece.whole(Draft.alone(0))])
            layers = [_measured(group, nodes) for group in target.cache.groups.values()]
        finally:
            target.close(0)
        return cls(limit, layers, target.packed, nodes)

    def bytes(self, tokens: int) -> int:
        """What a slot of so many tokens of prompt and answer may come to need."""
        return sum(layers.bytes(tokens) for layers in self._layers)

    @property
    def tokens(self) -> int:
        """The most tokens of prompt and answer that a slot may have, alone."""
        return bisect_right(range(UNLIMITED), self.limit, key=self.bytes) - 1

    @property
    def reserved(self) -> int:
        """Bytes of all open slots."""
        if self._packed:
            return sum(map(self.bytes, self._tokens.values()))
        return len(self._tokens) * self.bytes(self._longest) if self._tokens else 0

    def reserve(self, slot: int, tokens: int) -> bool:
        """Reserve memory for a slot of at most `tokens` of prompt and answer; false if too little is free."""
        longest, self._longest = self._longest, max(self._longest if self._tokens else 0, tokens)
        self._tokens[slot] = tokens
        if self.reserved <= self.limit:
            return True
        del self._tokens[slot]
        self._longest = longest
        return False

    def release(self, slot: int) -> None:
        """Give a slot's reservation back."""
        del self._tokens[slot]

    def max_nodes(self, slots: Sequence[int], held: Sequence[int]) -> list[int]:
        """The most nodes of each slot's tree, at least 1, so that a forward of these slots keeps to the reservations.

        Args:
            held: tokens that each slot holds.
        """
        if self._packed:
            free = [self._tokens[slot] - tokens for slot, tokens in zip(slots, held, strict=True)]
        else:
            free = [max(self._tokens.values()) - max(held)] * len(slots)
        return [max(1, min(self._nodes, tokens + sizes.SLACK)) for tokens in free]


def _measured(group: LayerGroup, nodes: int) -> LayerBytes:
    """Of a group with buffers."""
    buffers = [buffer for layer in group.layers for buffer in (layer.keys, layer.values) if buffer is not None]
    token_bytes = sum(buffer.nbytes for buffer in buffers) // group.slabs.total
    return LayerBytes(token_bytes, group.most_stored(nodes))
