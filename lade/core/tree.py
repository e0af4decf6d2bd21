"""Draft trees: the tokens that one forward computes for a request.

Node 0 is the root, the last accepted token, which is not in the KV cache yet. T nodes; parents[i] < i. Knows no model
and no device.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from lade.core.proposals import Proposals


@dataclass(slots=True)
class Draft:
    """The draft tree of one request in one step. Nobody changes it; to forbid that would cost a microsecond per draft.

    Attributes:
        tokens: T token ids; tokens[0] is the root.
        parents: T nodes; parents[0] is -1, parents[i] < i.
        depths: T distances from the root.
        queries: nodes whose logits are computed, ascending; the root is one of them, but for a chain of known tokens.
        sources: T names of the source that proposed a node first; "root" for the root.
        proposals: the distributions that tokens were drawn from; `None` for a draft without randomness.
        scored: further nodes of a chain of known tokens whose logits are computed, all before the queries.
        unreadable: nodes whose ids the model cannot read. They hold another id, and are no node's children.
    """

    tokens: list[int]
    parents: list[int]
    depths: list[int]
    queries: list[int]
    sources: list[str]
    proposals: Proposals | None = None
    scored: Sequence[int] = ()
    unreadable: Collection[int] = ()

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def alone(cls, token: int) -> Draft:
        """An empty draft: the root only."""
        return cls([token], [-1], [0], [0], ["root"])

    def child(self, node: int, token: int) -> int | None:
        """The child of a node with this token."""
        child = node
        try:
            while True:
                child = self.tokens.index(token, child + 1)
                if self.parents[child] == node and child not in self.unreadable:
                    return child
        except ValueError:  # no later node has the token
            return None

    @property
    def children(self) -> dict[tuple[int, int], int]:
        """(node, token) -> the child of the node with this token; made at each call."""
        known = enumerate(zip(self.parents, self.tokens, strict=True))
        return {place: node for node, place in known if node and node not in self.unreadable}

    def within(self, vocabulary: int) -> Draft:
        """This draft for a model that reads ids below `vocabulary`. A node with another id gets the root's token and is
        no child any more, so no walk reaches it. A root that the model cannot read is left to the model's error."""
        if max(self.tokens) < vocabulary:
            return self
        root = self.tokens[0]
        unreadable = {node for node, token in enumerate(self.tokens) if node and token >= vocabulary}
        tokens = [root if node in unreadable else token for node, token in enumerate(self.tokens)]
        return replace(self, tokens=tokens, unreadable=unreadable)


def chain(tokens: list[int], asked: bool, scored: bool = False) -> Draft:
    """Known tokens of a text.

    Args:
        asked: whether a token is chosen after the last one.
        scored: whether the logits after each token are computed.
    """
    nodes = len(tokens)
    queries = [nodes - 1] if asked else []
    parents, sources = list(range(-1, nodes - 1)), ["prompt"] * nodes
    known = range(nodes - len(queries)) if scored else ()
    return Draft(tokens, parents, list(range(nodes)), queries, sources, scored=known)


@dataclass(slots=True)
class TreeBuilder:
    """Builds a `Draft` path by path; paths with a common prefix share its nodes."""

    root: int
    tokens: list[int] = field(init=False)
    parents: list[int] = field(init=False)
    depths: list[int] = field(init=False)
    sources: list[str] = field(init=False)
    children: dict[tuple[int, int], int] = field(init=False)
    queries: set[int] = field(init=False)

    def __post_init__(self) -> None:
        self.tokens, self.parents, self.depths, self.sources = [self.root], [-1], [0], ["root"]
        self.children, self.queries = {}, {0}

    @classmethod
    def of(cls, draft: Draft) -> TreeBuilder:
        """Goes on with a draft."""
        tree = cls(draft.tokens[0])
        tree.tokens, tree.parents, tree.depths = [*draft.tokens], [*draft.parents], [*draft.depths]
        tree.sources, tree.children, tree.queries = [*draft.sources], draft.children, set(draft.queries)
        return tree

    def add(self, parent: int, token: int, source: str) -> int:
        """The child of `parent` with this token, added if there is none."""
        node = self.children.get((parent, token))
        if node is None:
            node = len(self.tokens)
            self.append(parent, token, source)
        return node

    def append(self, parent: int, token: int, source: str) -> None:
        """Add a child; `parent` must have none with this token."""
        self.children[parent, token] = len(self.tokens)
        self.tokens.append(token)
        self.parents.append(parent)
        self.depths.append(self.depths[parent] + 1)
        self.sources.append(source)

    def add_path(self, parent: int, tokens: tuple[int, ...] | list[int], source: str, query: bool = True) -> int:
        """Add a path of tokens below a node; `query` asks for their logits. Returns the last node."""
        for token in tokens:
            parent = self.add(parent, token, source)
            if query:
                self.queries.add(parent)
        return parent

    def below(self, root: int) -> TreeBuilder:
        """The subtree of a node, which becomes the root; all later nodes must be its descendants."""
        tree = TreeBuilder(self.tokens[root])
        tree.tokens, tree.sources = self.tokens[root:], ["root", *self.sources[root + 1 :]]
        tree.parents = [-1, *(parent - root for parent in self.parents[root + 1 :])]
        tree.depths = [depth - self.depths[root] for depth in self.depths[root:]]
        tree.children = {(node - root, t): child - root for (node, t), child in self.children.items() if node >= root}
        tree.queries = {0, *(node - root for node in self.queries if node > root)}
        return tree

    def whole(self) -> Draft:
        """The draft with the logits of all nodes."""
        return Draft(self.tokens, self.parents, self.depths, list(range(len(self.tokens))), self.sources)

    def build(self) -> Draft:
        return Draft(self.tokens, self.parents, self.depths, sorted(self.queries), self.sources)


def ancestor_matrix(parents: list[int], size: int | None = None) -> torch.Tensor:
    """The attention pattern inside a tree: a node sees its ancestors and itself.

    Args:
        parents: T nodes, parents[0] = -1, parents[i] < i.
        size: pads to this many nodes; a padding node sees only itself.

    Returns:
        [size, size] bool; element [i, j] says whether node i sees node j.
    """
    size = size or len(parents)
    if size == 1:
        return torch.ones(1, 1, dtype=torch.bool)
    octets = ancestor_octets([*parents, *[-1] * (size - len(parents))], (size + 7) // 8)
    matrix = np.unpackbits(octets, axis=1, count=size, bitorder="little")
    return torch.from_numpy(matrix).view(torch.bool)


def ancestor_octets(parents: Sequence[int], width: int) -> np.ndarray:
    """The same as bits: [T, width] uint8, read only; bit j of a node's line says whether it sees node j.

    Python's integers are the fastest sets of nodes for trees of up to some thousand.

    Args:
        parents: -1 for a node that sees only itself.
        width: octets of a line, at least T / 8.
    """
    seen: list[int] = []
    for node, parent in enumerate(parents):
        seen.append(seen[parent] | 1 << node if parent >= 0 else 1 << node)
    return np.frombuffer(b"".join([bits.to_bytes(width, "little") for bits in seen]), np.uint8).reshape(-1, width)
