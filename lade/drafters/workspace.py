"""The arrays that one drafter works in, and its calls of what is computed for all rows of a step at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, chain
from typing import NamedTuple

import numpy as np

from lade.base.buffers import GrowingBuffers
from lade.base.threads import FORK, counters, threads_for
from lade.core.drafter import Predictions
from lade.core.request import Verdict
from lade.core.tree import Draft
from lade.drafters.growth import (
    CUT,
    LIMITED,
    REPEATS,
    SIZE,
    TREE_FLOATS,
    TREE_INTS,
    Forest,
    Trees,
    new_forest,
    new_trees,
)
from lade.drafters.scratch import new_scratch
from lade.drafters.steps import DRAFT, LEARN, Lesson
from lade.memory.context import CONTEXT
from lade.memory.pools import Pool
from lade.memory.recent import slots_for
from lade.memory.rowmemory import RowMemory
from lade.memory.rows import Rows

NODE = 1 << 14  # operations, as of `threads_for`, that growing a node takes, or learning what the model predicts there


class TreePlan(NamedTuple):
    """How one row's tree grows.

    Attributes:
        deepest: the largest depth of a node.
        most: the most nodes, the root included.
        floor: path probability below which a stage's tokens are skipped.
        least: path probability, all stages added up, below which a token is skipped.
        weight: that path probabilities hold in this text.
    """

    deepest: int
    most: int
    floor: float
    least: float
    weight: float


class Grown(NamedTuple):
    """A tree that has grown, of T nodes.

    Attributes:
        tokens, parents, depths: T each, as of a `Draft`.
        stages: T stages (`lade.memory.stages`) that proposed them; the root's says nothing.
        masses: T path probabilities.
        limited: whether a further node found no room.
        cut: then the path probability of the last node that found room; else 0.
        repeats: whether the text's last token occurred earlier in it.
    """

    tokens: list[int]
    parents: list[int]
    depths: list[int]
    stages: list[int]
    masses: list[float]
    limited: bool
    cut: float
    repeats: bool


class Learned(NamedTuple):
    """What a step taught about one row.

    Attributes:
        memory: of the row.
        nodes: whose predictions are learned, in this order.
        lines: theirs in the predictions.
        size: the first nodes of the draft, which its tree has.
    """

    memory: RowMemory
    nodes: Sequence[int]
    lines: Sequence[int]
    size: int
    draft: Draft
    verdict: Verdict


class Workspace:
    """For one thread at a time."""

    def __init__(self) -> None:
        self._rows = Rows()
        self._forest, self._trees = GrowingBuffers(new_forest, 1, 1, 1), GrowingBuffers(new_trees, 1)
        self._scratch = GrowingBuffers(new_scratch, 1, 1)

    def grow(
        self,
        memories: Sequence[RowMemory],
        new: Sequence[Sequence[int]],
        plans: Sequence[TreePlan],
        nodes: int,
        together: bool,
        sure: float,
        prior: float,
        chains: bool = False,
    ) -> list[Grown]:
        """Take in the text that was emitted, and grow a tree per row (`lade.drafters.growth.grow`).

        Args:
            new: tokens of each row since the last call.
            nodes: of all trees together, or of each.
            together: whether all trees share the nodes.
            sure, prior: as of `lade.drafters.growth.grow`.
            chains: whether one path is kept of each tree, that of most expected accepted tokens.
        """
        number, most = len(memories), sum(plan.most for plan in plans)
        threads = 1 if together else min(number, threads_for(min(most, number * nodes) * NODE))
        room = most if together else max(plan.most for plan in plans)
        forest, trees = self._forest.of(number, room, threads), self._trees.of(most)
        forest.ints[: number * TREE_INTS] = [value for plan in plans for value in (plan.deepest, plan.most, 0, 0, 0)]
        values = [value for plan in plans for value in (plan.floor, plan.least, plan.weight, 0.0, 0.0)]
        forest.floats[: number * TREE_FLOATS] = values
        for memory, plan in zip(memories, plans, strict=True):
            memory.reserve_nodes(plan.most)
        tokens = np.array([token for some in new for token in some], np.int32)
        ends = np.array([*accumulate(map(len, new))], np.int64)
        with _Locked(memory.pool for memory in memories):
            self._rows.set([memory.row() for memory in memories])
            call = FORK, threads, counters(), self._rows
            DRAFT(*call, tokens, ends, forest, trees, nodes, together, sure, prior, chains)
        return _grown(forest, trees, number)

    def learn(self, rows: Sequence[Learned], predictions: Predictions) -> None:
        """Learn from the verdicts of a step, and from the model's predictions at the nodes.

        Before the next draft: one draft later, while the model computes, stories3M takes 7 % more steps with 16 nodes,
        and 22 % more with 64.
        """
        pools = _by_pool(rows)
        rows = [*chain.from_iterable(pools.values())]
        (step, begins), ends = _step_of(rows), np.array([*accumulate(map(len, pools.values()))], np.int64)
        tokens, probabilities = predictions.likeliest()
        top, nodes = tokens.shape[1], [len(row.nodes) for row in rows]
        threads = min(len(pools), threads_for(sum(nodes) * NODE))
        scratch = self._scratch.of(threads, slots_for(max(nodes), top))
        with _Locked(pools):
            for row in rows:
                row.memory.reserve_nodes(len(row.draft))
            _reserve(pools)
            self._rows.set([row.memory.row() for row in rows])
            lesson = Lesson(step, begins, ends, tokens.ravel(), probabilities.ravel(), top)
            LEARN(FORK, threads, counters(), self._rows, lesson, scratch)


def _grown(forest: Forest, trees: Trees, rows: int) -> list[Grown]:
    """The trees of so many rows, of which machine code has written the arrays."""
    ints, floats = forest.ints[: rows * TREE_INTS].tolist(), forest.floats[: rows * TREE_FLOATS].tolist()
    sizes, cuts = ints[SIZE::TREE_INTS], floats[CUT::TREE_FLOATS]
    limited, repeats = ints[LIMITED::TREE_INTS], ints[REPEATS::TREE_INTS]
    nodes = sum(sizes)
    tokens, parents, depths, stages = trees.nodes.reshape(4, -1)[:, :nodes].tolist()
    masses = trees.masses[:nodes].tolist()
    found, begin = [], 0
    for size, full, cut, known in zip(sizes, limited, cuts, repeats, strict=True):
        own = slice(begin, begin + size)
        tree = tokens[own], parents[own], depths[own], stages[own], masses[own]
        found.append(Grown(*tree, full == 1, cut, known == 1))
        begin += size
    return found


class _Locked:
    """Holds all locks of some pools, taken in an order that is the same for all threads."""

    def __init__(self, pools: Iterable[Pool]) -> None:
        known = {id(pool): pool.lock for pool in pools}
        self._locks = [known[each] for each in sorted(known)]
        self._taken = 0

    def __enter__(self) -> None:
        try:
            for lock in self._locks:
                lock.acquire()
                self._taken += 1
        except BaseException:  # an interrupt while another thread holds one
            self.__exit__()
            raise

    def __exit__(self, *raised: object) -> None:
        while self._taken:
            self._taken -= 1
            self._locks[self._taken].release()


def _by_pool(rows: Sequence[Learned]) -> dict[Pool, list[Learned]]:
    """The rows of each pool, in order."""
    found: dict[Pool, list[Learned]] = {}
    for row in rows:
        found.setdefault(row.memory.pool, []).append(row)
    return found


def _reserve(pools: Mapping[Pool, Sequence[Learned]]) -> None:
    """Make room in each pool for what all of its rows may add."""
    for pool, rows in pools.items():
        pool.table.reserve(CONTEXT * sum(len(row.nodes) for row in rows))


def _step_of(rows: Sequence[Learned]) -> tuple[np.ndarray, np.ndarray]:
    """The step of a `Lesson`, and where each row begins in it."""
    step: list[int] = []
    begins: list[int] = []
    for row in rows:
        draft, path = row.draft, row.verdict.path
        further = len(draft) - row.size
        begins.append(len(step))
        step += row.memory.pool.table.capacity, row.size, further, len(path), len(row.nodes)
        if further:
            step += draft.parents[row.size :]
            step += draft.tokens[row.size :]
        step += path
        step += row.verdict.tokens
        step += row.nodes
        step += row.lines
    return np.array(step, np.int64), np.array(begins, np.int64)
