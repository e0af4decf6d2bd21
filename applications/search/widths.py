"""Acceptance of a draft model's likeliest tokens, and the tree of candidates with the fewest steps, from ranks alone.

With certain drafts (the k likeliest tokens after a node) a draft is accepted if the text's next token is among them, so
the rank of every token of a text under the draft model gives the steps of every tree without decoding again: exactly
those of `lade.MultiCandidate` in greedy decoding. Knows numbers only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from lade.applications.interval import Estimate, pooled_ratio
from lade.base.shown import invalid

DEEPEST = 8  # levels of a tree
MOST = 8  # candidates per node whose acceptance is told

Ranks = Sequence[int]
"""The rank under the draft model of every token of a text after its first; 0: the likeliest."""

Widths = tuple[int, ...]


@dataclass(frozen=True)
class TreeSteps:
    """A tree of candidates and the steps of the texts with it.

    Attributes:
        widths: candidates per node, depth by depth.
        nodes: of the draft tree, without the root.
        counts: new tokens and steps of every text.
    """

    widths: Widths
    nodes: int
    counts: tuple[tuple[int, int], ...]

    @property
    def tokens_per_step(self) -> float:
        """New tokens / forwards after the prefill."""
        return sum(tokens for tokens, _ in self.counts) / max(1, sum(steps for _, steps in self.counts))

    @property
    def interval(self) -> Estimate:
        """Tokens per step with its 95% interval over texts."""
        return pooled_ratio(self.counts)


def acceptance(texts: Sequence[Ranks], k: int) -> Estimate:
    """The share of tokens among the k likeliest of the draft model, with its 95% interval over texts."""
    return pooled_ratio([(sum(rank < k for rank in ranks), len(ranks)) for ranks in texts])


def trees(texts: Sequence[Ranks], nodes: int) -> list[TreeSteps]:
    """All trees of at most this many nodes and DEEPEST levels, in increasing order of their widths.

    Raises:
        ValueError: there is no text with two tokens, or `nodes` is below 1.
    """
    if nodes < 1:
        raise invalid("nodes", "at least 1", nodes)
    told = [np.asarray(ranks) for ranks in texts if len(ranks)]
    if not told:
        raise invalid("texts", "at least one text of two tokens", texts)
    return list(_grown(told, [np.zeros(len(ranks), int) for ranks in told], (), 1, nodes))


def _grown(
    texts: Sequence[np.ndarray], accepted: Sequence[np.ndarray], widths: Widths, last: int, room: int
) -> Iterator[TreeSteps]:
    """The trees that begin with `widths`.

    Args:
        accepted: for every text and position, how many tokens after it a tree of these widths accepts.
        last: nodes of the last level.
        room: nodes that may be added.
    """
    if len(widths) == DEEPEST:
        return
    for width in range(1, room // last + 1):
        found = [_deeper(ranks, before, len(widths), width) for ranks, before in zip(texts, accepted, strict=True)]
        own, left = (*widths, width), room - last * width
        counts = tuple((len(ranks) + 1, steps_of(each)) for ranks, each in zip(texts, found, strict=True))
        yield TreeSteps(own, nodes_of(own), counts)
        yield from _grown(texts, found, own, last * width, left)


def _deeper(ranks: np.ndarray, accepted: np.ndarray, depth: int, width: int) -> np.ndarray:
    """Accepted tokens with one more level, of `width` candidates per node, below `depth` levels."""
    reached = np.flatnonzero(accepted[: len(ranks) - depth] == depth)
    deeper = accepted.copy()
    deeper[reached[ranks[reached + depth] < width]] += 1
    return deeper


def steps_of(accepted: Sequence[int] | np.ndarray) -> int:
    """Forwards after the prefill: each emits the accepted tokens and the model's own next one."""
    at, steps = 0, 0
    while at < len(accepted):
        at += int(accepted[at]) + 1
        steps += 1
    return steps


def nodes_of(widths: Widths) -> int:
    return int(np.cumprod(widths).sum())


def best_by_first(found: Sequence[TreeSteps]) -> dict[int, TreeSteps]:
    """The best tree for each number of candidates after the root, up to MOST."""
    firsts = sorted({tree.widths[0] for tree in found if tree.widths[0] <= MOST})
    return {first: best(tree for tree in found if tree.widths[0] == first) for first in firsts}


def best_by_depth(found: Sequence[TreeSteps]) -> list[TreeSteps]:
    """The best tree of each depth; deeper ones only where they bring more."""
    kept: list[TreeSteps] = []
    for depth in range(1, DEEPEST + 1):
        own = [tree for tree in found if len(tree.widths) == depth]
        if own and (not kept or best(own).tokens_per_step > kept[-1].tokens_per_step):
            kept.append(best(own))
    return kept


def best(found: Iterable[TreeSteps]) -> TreeSteps:
    """The tree with the most tokens per step; of equal ones the smallest."""
    return min(found, key=lambda tree: (-tree.tokens_per_step, tree.nodes, tree.widths))
