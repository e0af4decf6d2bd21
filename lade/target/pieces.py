"""What a forward computes of one row: the newest nodes of a token tree. Knows no model and no device.

T nodes to compute, C nodes of the tree up to the last of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from lade.core.tree import Draft

WORD = 64  # bits


@dataclass(frozen=True, slots=True)
class Piece:
    """The nodes of one tree from `first` on.

    Attributes:
        tokens: [T]
        parents: [C] parents[0] is -1, parents[i] < i.
        depths: [C] distances from the root.
        first: nodes that earlier forwards of the step have computed, C - T.
        queries: nodes from `first` on whose logits are wanted, ascending.
        filling: token for padding nodes.
    """

    tokens: Sequence[int]
    parents: Sequence[int]
    depths: Sequence[int]
    first: int
    queries: Sequence[int]
    filling: int

    @classmethod
    def whole(cls, draft: Draft) -> Piece:
        """All nodes of a draft. Its root pads, as its keys and values are in use: those of another token may be NaN."""
        queries = [*draft.scored, *draft.queries] if draft.scored else draft.queries
        return cls(draft.tokens, draft.parents, draft.depths, 0, queries, draft.tokens[0])

    @property
    def columns(self) -> int:
        return len(self.parents)

    @property
    def is_chain(self) -> bool:
        return self.parents[-1] == self.columns - 2 and self.depths[-1] == self.columns - 1

    def padded(self, nodes: int, columns: int) -> Piece:
        """This piece with T and C as given: padding nodes see only themselves."""
        if (nodes, columns) == (len(self.tokens), self.columns):
            return self
        tokens = [*self.tokens, *[self.filling] * (nodes - len(self.tokens))]
        parents = [*self.parents, *[-1] * (columns - self.columns)]
        depths = [*self.depths, *[0] * (columns - self.columns)]
        return Piece(tokens, parents, depths, self.first, self.queries, self.filling)

    @property
    def own_depths(self) -> Sequence[int]:
        """[T]"""
        return self.depths[self.first : self.first + len(self.tokens)]

    def ancestors(self) -> np.ndarray:
        """[T, ceil(C / 64)] int64: bit j of a node's words says whether it sees node j, itself included."""
        return _ancestors(tuple(self.parents))[self.first : self.first + len(self.tokens)]


@lru_cache(maxsize=1024)  # trees of one method are often equal
def _ancestors(parents: tuple[int, ...]) -> np.ndarray:
    seen: list[int] = []
    for node, parent in enumerate(parents):
        seen.append((seen[parent] if parent >= 0 else 0) | 1 << node)
    words = -(-len(parents) // WORD)
    octets = b"".join([bits.to_bytes(8 * words, "little") for bits in seen])
    return np.frombuffer(octets, dtype="<i8").reshape(len(parents), words)


def visibility(words: torch.Tensor, columns: int) -> torch.Tensor:
    """[T, C] bool from the words of `Piece.ancestors`, where those are."""
    bits = torch.arange(WORD, device=words.device)
    return (words[:, :, None] >> bits & 1).flatten(1)[:, :columns].bool()
