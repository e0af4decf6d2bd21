"""A round: draft, forward pass, choice, walk, keep and learn in one function of the device, without the host.

So rounds may follow each other, and the host reads what several have emitted at once. R rows, T nodes of a row's tree,
N = R * T, S slots, V vocabulary, k tokens of a top-k.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lade.memory.predictions import TOP
from lade.static import fusing
from lade.static.choices import Chooser
from lade.static.inputs import CERTAIN, NEVER, Size, StepInputs
from lade.static.kernelrows import Kernel
from lade.static.rounds.ends import Ends
from lade.static.rounds.growing import Growing, Trees
from lade.static.rounds.recall import LONGEST
from lade.static.slots import StaticSlots
from lade.static.step import NOT_A_NUMBER
from lade.static.walking import RIGHT, WalkingStep
from lade.target.pieces import ancestor_words, words_for

TREE = 2  # columns of a node before those of `WalkingStep`
ENDED = -3  # in place of a token after which a text ends: no node follows
SLOT, LENGTH, LEFT, EMITTED, LAST = range(5)  # what a visit says of a row, and its last tokens from `LAST` on
PER_ROW = LAST + LONGEST


class RoundStep(WalkingStep):
    """The function, for one model and trees of one size.

    Args:
        rows: how many a round has, R.
        growing: makes its trees.
        ends: where a text does.
        rounds: the most between two visits of the host.

    Attributes:
        visit: [R, PER_ROW] what the host says of each row before the first round; rows of the spare slot do nothing.
        contexts: [S + 1, LONGEST] last tokens of each slot's text, of which the last one is not computed yet.
        left: [S + 1] tokens that each slot's text may still emit; 0 once it has ended, or where a NaN stops it.
        found: [rounds, N, 4 + 2k] of each round: the token of each node, or `NEVER` where it only fills up its row or
            is deeper than the text may go, and its parent in its tree; then what `WalkingStep` returns.
    """

    def __init__(
        self,
        model: Any,
        slots: StaticSlots,
        chooser: Chooser,
        rows: int,
        growing: Growing,
        ends: Ends,
        rounds: int = 1,
        vocabulary: int | None = None,
        kernel: Kernel | None = None,
    ) -> None:
        super().__init__(model, slots, chooser, vocabulary, kernel)
        device, nodes = slots.lengths.device, growing.nodes
        self.growing, self.ends, self.rows, self.rounds = growing, ends, rows, rounds
        self._grow: Callable[[torch.Tensor, torch.Tensor], Trees] = growing.grow
        self._core: Callable[[StepInputs], tuple[torch.Tensor, ...]] = self.core
        self.visit = torch.zeros(rows, PER_ROW, dtype=torch.long, device=device)
        self.idle(self.visit)
        self.contexts = torch.zeros(slots.count + 1, LONGEST, dtype=torch.long, device=device)
        self.left = torch.zeros_like(slots.lengths)
        top = TOP if vocabulary is None else min(TOP, vocabulary)
        self.found = torch.zeros(rounds, rows * nodes, TREE + 2 + 2 * top, dtype=torch.int32, device=device)
        self._round = torch.zeros(1, dtype=torch.long, device=device)
        size = Size(rows * nodes, rows, words_for(nodes))
        self.inputs = StepInputs(torch.zeros(size.numbers, dtype=torch.long, device=device), size)
        alone = ancestor_words([-1] * nodes, size.words)  # [T, W] nodes that see themselves
        self._own_bits = torch.from_numpy(alone.copy()).to(device)
        self._lay_out(nodes)

    def _lay_out(self, nodes: int) -> None:
        """What does not change from round to round: each row has as many nodes."""
        own, rows = self.inputs, torch.arange(self.rows, device=self.left.device)
        own.indices.copy_(torch.arange(len(own.ids), device=rows.device) % nodes)
        own.firsts.copy_(rows * nodes)
        own.trees.copy_(rows * nodes * (1 + own.words.shape[1]))

    def idle(self, visit: torch.Tensor) -> None:
        """Fill [R, PER_ROW] with rows that do nothing; a text that has ended has a length of at least 1."""
        visit.zero_()
        visit[:, SLOT], visit[:, LENGTH] = self.slots.spare, 1

    def resume(self) -> None:
        """Begin a visit with what `visit` says."""
        told, own, slots = self.visit, self.inputs, self.slots
        rows = told[:, SLOT]
        own.rows.copy_(rows)
        own.slots.copy_(rows.repeat_interleave(self.growing.nodes))
        own.counts.copy_((rows != slots.spare) * self.growing.nodes)
        pairs = (slots.lengths, LENGTH), (self.left, LEFT), (slots.emitted, EMITTED)
        for goal, column in pairs:
            goal.index_copy_(0, rows, told[:, column])
        self.contexts.index_copy_(0, rows, told[:, LAST:])
        self._round.zero_()

    def round(self) -> None:
        """Draft, compute, choose, walk, keep, learn."""
        inputs, rows = self.inputs, self.inputs.rows
        left = self.left[rows]
        trees = self._grow(rows, self.contexts[rows]).within(left)
        self._fill(trees)
        table, choices, ended, right, live = self._core(inputs)
        tokens = trees.tokens.where(trees.masses > 0, NEVER)
        tree = torch.stack([tokens, trees.parents], dim=2).flatten(0, 1).int()
        self.found.index_copy_(0, self._round, torch.cat([tree, table], dim=1)[None])
        self._round.add_(1)
        self.slots.keep(right, inputs.depths, inputs.slots, right)
        self._learn(trees, table, live)
        self._follow(trees, choices, ended, right, live)

    def core(self, inputs: StepInputs) -> tuple[torch.Tensor, ...]:
        """What `WalkingStep` returns, by nodes that a text has room for; [N] tokens chosen after each node, [N] bool
        whether a text ends behind it, [N] bool accepted nodes, and [R] tokens that each row may emit."""
        logits = self.compute(inputs)
        choices = self.chooser(logits, inputs, self.slots)
        table = self.table(logits, choices, inputs)
        ended = self.ends(inputs.slots, choices)
        live = self.left[inputs.rows] * ~(table[:, 1] & NOT_A_NUMBER).bool().view(self.rows, -1).any(1)
        right = self.walk(inputs, torch.where(ended, ENDED, choices))
        right = right & (live > 0).repeat_interleave(self.growing.nodes)
        table[:, 1] |= RIGHT * right
        return table, choices, ended, right, live

    def fuse(self) -> None:
        """Have torch compile a round's drafting and its core, when they are first called (`lade.static.fusing`).

        Raises:
            ValueError: the step has several slots, or a kernel.
        """
        fusing.check(self)
        self._grow, self._core = fusing.compiled(self.growing.grow), fusing.fused(self)

    def _fill(self, trees: Trees) -> None:
        """The inputs of a forward pass of these trees."""
        own, rows = self.inputs, self.rows
        own.ids.copy_(trees.tokens.flatten())
        own.parents.copy_((own.firsts[:, None] + trees.parents).flatten())
        own.depths.copy_(trees.depths.flatten())
        own.orders.copy_(own.depths)
        claims = torch.where(trees.masses > 0, trees.tokens, NEVER)
        claims[:, 0] = CERTAIN
        own.claims.copy_(claims.flatten())
        words, above = self._own_bits.expand(rows, -1, -1), trees.parents[:, :, None].expand(-1, -1, own.words.shape[1])
        hops = 1
        while hops <= self.growing.depth:  # each node takes over what its ancestor so many hops above sees
            words = words | words.gather(1, above)
            above = above.gather(1, above)
            hops *= 2
        own.words.copy_(words.flatten(0, 1))
        own.integers.copy_(torch.cat([trees.depths, words.flatten(1)], dim=1).flatten())

    def _learn(self, trees: Trees, table: torch.Tensor, live: torch.Tensor) -> None:
        """The predictions after all nodes of rows that go on, those of the tree's end last."""
        top = table.shape[1] // 2 - 1
        kept = ((trees.masses > 0) & (live > 0)[:, None]).flatten()
        masses = table[:, 2 + top :].contiguous().view(torch.float32)
        self.growing.recall.learn(self.inputs.slots, trees.contexts.flatten(0, 1), table[:, 2 : 2 + top], masses, kept)

    def _follow(
        self, trees: Trees, choices: torch.Tensor, ended: torch.Tensor, right: torch.Tensor, live: torch.Tensor
    ) -> None:
        """Make the last token that each row has emitted its next root, unless its text has ended."""
        rows, accepted = self.inputs.rows, right.view(self.rows, -1)
        last = (accepted * (1 + trees.depths)).argmax(1, keepdim=True)  # [R, 1]
        token = choices.view(self.rows, -1).gather(1, last)
        context = trees.contexts.gather(1, last[:, :, None].expand(-1, -1, LONGEST))[:, 0, 1:]
        emits = accepted.any(1)
        stopped = ended.view(self.rows, -1).gather(1, last)[:, 0] & emits
        self.left.index_copy_(0, rows, torch.where(stopped, 0, live - accepted.sum(1)))
        moved = emits & ~stopped  # the model may not read a token that ends a text
        follow = torch.where(moved[:, None], torch.cat([context, token], dim=1), self.contexts[rows])
        self.contexts.index_copy_(0, rows, follow)
