"""Growth of draft trees on the device, level by level, in static shapes: of each row the nodes of largest path
probability.

The nodes of a level that could belong to these are all expanded, so the tree is that of best-first growth down to its
depth. R rows, T nodes of a tree, F nodes of a level, M contexts, k tokens of a prediction.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from lade.memory.predictions import TOP
from lade.memory.stages import NAMES, STAGES
from lade.static.rounds.coupled import Coupled
from lade.static.rounds.recall import LONGEST, Recall
from lade.static.rounds.warmarrays import WarmArrays

DEPTH = 8  # of a tree, unless asked otherwise
BELOW = 1 - 2.0**-12  # a node's path probability is below its parent's by at least this, so that none is without it
# Of what its stages leave, a stage takes its prior (`lade.memory.stages`), the longest context first.
SHARES = tuple(STAGES[NAMES.index(name)].priors[0] for name in ("recycled-3", "recycled-2", "recycled-1", "warm"))


class Trees(NamedTuple):
    """Trees of R rows. Node 0 is the root; a parent comes before its children.

    Attributes:
        tokens, parents, depths: [R, T].
        masses: [R, T] path probabilities; 0 of nodes that fill up a row. These are children of the root, of its depth:
            they need no further position.
        contexts: [R, T, LONGEST] the last tokens of each node's path, its own included.
    """

    tokens: torch.Tensor
    parents: torch.Tensor
    depths: torch.Tensor
    masses: torch.Tensor
    contexts: torch.Tensor

    def within(self, left: torch.Tensor) -> Trees:
        """These trees without nodes deeper than texts may go that emit at most [R] further tokens.

        Where a text has ended, the root fills up its row too, one position earlier: it may have none of its own.
        """
        used = (self.masses > 0) & (self.depths < left[:, None])
        return self._replace(depths=self.depths * used - (left < 1)[:, None].long(), masses=self.masses * used)


class Growing:
    """Grows trees of one size.

    Args:
        warm: the model's predictions from before any text; `None`: there are none.
        nodes: of a tree, T, the root included.
        depth: the largest one of a node.
        coupled: what is known of the noise of sampled tokens; `None` where the likeliest ones are chosen.

    Raises:
        ValueError: names the argument.
    """

    def __init__(
        self,
        recall: Recall,
        warm: WarmArrays | None,
        nodes: int,
        depth: int = DEPTH,
        coupled: Coupled | None = None,
    ) -> None:
        if depth < 1:
            raise ValueError(f"depth must be at least 1, got {depth}")
        widths = [1]
        for _ in range(depth):
            widths.append(max(1, min(nodes - 1, TOP * widths[-1])))
        if not 2 <= nodes <= sum(widths):
            raise ValueError(f"nodes must be from 2 to {sum(widths)} at depth {depth}, got {nodes}")
        self.recall, self.warm, self.nodes, self.depth, self._widths = recall, warm, nodes, depth, widths
        self._coupled = coupled
        device = recall.device
        self._shares = torch.tensor(SHARES, device=device)
        self._before = torch.ones(len(SHARES) * TOP, len(SHARES) * TOP, device=device).tril(-1).bool()

    def grow(self, slots: torch.Tensor, contexts: torch.Tensor) -> Trees:
        """Trees below the last of [R, LONGEST] tokens in [R] slots."""
        level = Trees(
            contexts[:, -1:], torch.zeros_like(slots)[:, None], torch.zeros_like(slots)[:, None],
            torch.ones(len(slots), 1, device=slots.device), contexts[:, None],
        )  # fmt: skip
        levels, first = [level], 0
        for depth, width in enumerate(self._widths[1:]):
            level, above = self._below(slots, level, depth, first, width), level
            levels.append(level)
            first += above.tokens.shape[1]
        return self._likeliest(Trees(*(torch.cat(parts, dim=1) for parts in zip(*levels, strict=True))))

    def expect(self, slots: torch.Tensor, contexts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[M, k] tokens and probabilities after [M, LONGEST] contexts in [M] slots, likeliest first: the sum of what
        all stages say of a token."""
        tokens, masses = self.recall.find(slots, contexts)
        tokens, masses = tokens.flip(1), masses.flip(1)  # the longest context first
        if self.warm is not None:
            further = self.warm.find(slots, contexts)
            tokens = torch.cat([tokens, further[0][:, None]], dim=1)
            masses = torch.cat([masses, further[1][:, None]], dim=1)
        shares = self._shares[: masses.shape[1]] * (masses[:, :, 0] > 0)
        left = torch.cat([torch.ones_like(shares[:, :1]), (1 - shares).cumprod(1)[:, :-1]], dim=1)
        tokens, masses = tokens.flatten(1), (masses * (left * shares)[:, :, None]).flatten(1)
        same = (tokens[:, :, None] == tokens[:, None]) & (masses[:, None] > 0)
        again = (same & self._before[: tokens.shape[1], : tokens.shape[1]]).any(2)
        sums = (same * masses[:, None]).sum(2).masked_fill(again | (masses == 0), 0)
        best, places = sums.topk(TOP)
        return tokens.gather(1, places), best

    def chosen(self, slots: torch.Tensor, depth: int, contexts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[M, k] tokens and the probabilities that they are chosen after [M, LONGEST] contexts of nodes at a depth."""
        tokens, masses = self.expect(slots, contexts)
        return tokens, masses if self._coupled is None else self._coupled(slots, depth, tokens, masses)

    def _below(self, slots: torch.Tensor, level: Trees, depth: int, first: int, width: int) -> Trees:
        """The likeliest `width` children of a level at a depth, whose nodes stand from `first` on."""
        rows, above = level.tokens.shape
        tokens, masses = self.chosen(slots.repeat_interleave(above), depth, level.contexts.flatten(0, 1))
        paths = level.masses[:, :, None] * masses.view(rows, above, TOP) * BELOW
        best, places = paths.flatten(1).topk(width)
        parents, token = places // TOP, tokens.view(rows, -1).gather(1, places)
        contexts = torch.cat([_at(level.contexts, parents)[:, :, 1:], token[:, :, None]], dim=2)
        return Trees(token, first + parents, level.depths[:, :1].expand_as(token) + 1, best, contexts)

    def _likeliest(self, pool: Trees) -> Trees:
        """The tree of the likeliest nodes of a pool, in its order; the pool has parents before their children."""
        best, places = pool.masses[:, 1:].topk(self.nodes - 1)
        unused = best <= 0
        last = pool.masses.shape[1]
        places = torch.cat([torch.zeros_like(places[:, :1]), torch.where(unused, last, places + 1)], dim=1).sort(1)[0]
        used = places < last
        numbers = torch.zeros(len(places), last + 1, dtype=torch.long, device=places.device)
        order = torch.arange(self.nodes, device=places.device).expand_as(places)
        numbers.scatter_(1, places, order)
        places = places * used  # nodes that fill up a row are like the root
        return Trees(
            pool.tokens.gather(1, places),
            numbers.gather(1, pool.parents.gather(1, places)),
            pool.depths.gather(1, places) * used,
            pool.masses.gather(1, places) * used,
            _at(pool.contexts, places),
        )


def _at(contexts: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """[R, F, LONGEST] of [R, *, LONGEST] at [R, F] places."""
    return contexts.gather(1, places[:, :, None].expand(-1, -1, LONGEST))
