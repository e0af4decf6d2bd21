"""What a forward computes of one row: the newest nodes of a token tree. Knows no model and no device.

T nodes to compute, C nodes of the tree up to the last of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lade.core.tree import Draft, ancestor_octets

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


def ancestors(pieces: Sequence[Piece]) -> np.ndarray:
    """[sum C, W] int64: bit j of a node's words says whether it sees node j of its own tree, itself included.

    The words of each tree are enough for the largest one.
    """
    words = words_for(max(piece.columns for piece in pieces))
    return np.concatenate([ancestor_words(piece.parents, words) for piece in pieces])


def ancestor_words(parents: Sequence[int], words: int) -> np.ndarray:
    """[C, words] int64, the words of one tree; read only."""
    return ancestor_octets(parents, words * WORD // 8).view("<i8")


def words_for(nodes: int) -> int:
    """How many words have a bit for each of so many nodes."""
    return -(-nodes // WORD)


def visibility(words: torch.Tensor) -> torch.Tensor:
    """[sum C, 64 W] bool from the words of `ancestors`, where those are."""
    if words.device.type == "cpu":
        return torch.from_numpy(np.unpackbits(words.numpy().view(np.uint8), axis=1, bitorder="little")).view(torch.bool)
    bits = torch.arange(WORD, device=words.device)
    return (words[:, :, None] >> bits & 1).flatten(1).bool()
