"""What a forward computes of one row: the newest nodes of a token tree. Knows no model and no device.

T nodes to compute, C nodes of the tree up to the last of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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


def ancestors(pieces: Sequence[Piece]) -> np.ndarray:
    """[sum C, W] int64: bit j of a node's words says whether it sees node j of its own tree, itself included.

    The words of each tree are enough for the largest one. Ancestors of all nodes are found together, those of 1, 2, 4,
    ... generations before in turn.
    """
    sizes = [piece.columns for piece in pieces]
    nodes = np.arange(sum(sizes))
    begins = np.repeat(np.cumsum([0, *sizes[:-1]]), sizes)
    parents = np.array([parent for piece in pieces for parent in piece.parents])
    above = np.where(parents < 0, nodes, parents + begins)
    own = nodes - begins
    words = np.zeros((len(nodes), -(-max(sizes) // WORD)), "<u8")
    words[nodes, own // WORD] = np.uint64(1) << (own % WORD).astype(np.uint64)
    generations, deepest = 1, max(max(piece.depths) for piece in pieces)
    while generations <= deepest:
        words |= words[above]
        above = above[above]
        generations *= 2
    return words.view("<i8")


def visibility(words: torch.Tensor) -> torch.Tensor:
    """[sum C, 64 W] bool from the words of `ancestors`, where those are."""
    if words.device.type == "cpu":
        return torch.from_numpy(np.unpackbits(words.numpy().view(np.uint8), axis=1, bitorder="little")).view(torch.bool)
    bits = torch.arange(WORD, device=words.device)
    return (words[:, :, None] >> bits & 1).flatten(1).bool()
