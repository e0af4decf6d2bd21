"""Steps that the device has drafted, computed and walked by itself, handed to the decode loop one by one.

The loop verifies, emits, counts and learns as after a step of its own. What it has not asked for when it stops, or when
its rows change, is dropped: each visit tells the device all that it begins with. R rows, T nodes, k tokens of a top-k.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from lade.core.request import Request
from lade.core.tree import Draft
from lade.facts.vocabulary import readable
from lade.memory.backoff import Backoff
from lade.pace.turns import Turns
from lade.static.buckets import NODES, rows_bucket
from lade.static.inputs import NEVER
from lade.static.outputs import lines_of
from lade.static.rounds.choosing import Choosing
from lade.static.rounds.growing import DEPTH, Growing
from lade.static.rounds.loop import DeviceLoop, Place, tokens_of
from lade.static.rounds.recall import Recall
from lade.static.rounds.step import TREE, RoundStep
from lade.static.rounds.warmarrays import WarmArrays
from lade.static.step import NOT_A_NUMBER
from lade.static.target import StaticTarget
from lade.static.walking import RIGHT
from lade.target.outputs import Outputs

ROUNDS = 4  # of a visit, at most
MOST_NODES = 64  # of a row's tree
SOURCE = "device"
TAKEN = 2  # tokens that a round is at least expected to emit
MOST_LOOPS = 4  # that one set of graphs keeps; each has tables of its own

_log = logging.getLogger(__name__)


class DeviceDrafts:
    """For the requests of one call.

    Args:
        choosing: how the call's tokens are chosen.
        nodes: the most of a row's tree.
        stops: tokens after which a text ends.
        warm: gives the model's predictions from before any text, at an inverse temperature; `None`: there are none.
        table: which table `warm` reads.
        turns: decides between these steps and those that the host drafts; `None`: all are these.
    """

    def __init__(
        self,
        target: StaticTarget,
        choosing: Choosing,
        rows: int,
        nodes: int,
        stops: frozenset[int],
        warm: Callable[[float], Backoff] | None,
        table: str | None,
        turns: Turns | None,
    ) -> None:
        self._target, self._rows, self._stops, self._turns = target, rows_bucket(rows), stops, turns
        self._choosing, self._warm, self._table = choosing, warm, table
        self._nodes = min(nodes, MOST_NODES, NODES[-1] // self._rows)
        self._begun: set[int] = set()  # slots whose texts the device knows
        self._steps: deque[np.ndarray] = deque()  # [R, T, 4 + 2k] of each step that is to be handed out
        self._order: dict[int, int] = {}  # slot -> row of these
        self._broken = self._nodes < 2
        self._recall: Recall | None = None

    def next(self, requests: Sequence[Request]) -> tuple[list[Draft], Outputs] | None:
        """The next step of these requests, with what the model chose; `None` where the host is to draft."""
        slots = [request.slot for request in requests]
        if not (self._steps and self._order.keys() >= set(slots)):
            self._steps.clear()
            if self._broken or not self._turn(requests) or not self._visit(requests):
                return None
        step = self._steps.popleft()[[self._order[slot] for slot in slots]]
        flags = step[:, :, TREE + 1]
        if not (flags[:, 0] & RIGHT).all():  # the device has stopped a row: at its last position, or as there is NaN
            self._steps.clear()
            self._broken = bool((flags & NOT_A_NUMBER).any())  # a step of the loop's own finds out of whose draft
            self._target.discard(slots)
            return None
        drafts = [_tree(row) for row in step]
        self._target.made(drafts)
        return drafts, _outputs(step, drafts)

    def _turn(self, requests: Sequence[Request]) -> bool:
        return self._turns is None or self._turns.next(sum(request.emitted for request in requests))

    def _visit(self, requests: Sequence[Request]) -> bool:
        """Have the device make the next steps. Returns whether it has."""
        target, slots = self._target, [request.slot for request in requests]
        left = [1 + target.depth_limit(request.slot, request.limit - request.emitted) for request in requests]
        if min(left) < 1:
            return False
        rounds = max(1, min(ROUNDS, min(left) // TAKEN))
        longest = max(len(request.tokens) for request in requests)
        target.make_room(tokens_of(longest, rounds, self._nodes, DEPTH))
        loop = self._loop(requests[0].inverse_temperature)
        if loop is None:
            return False
        target.settle(slots)
        for request in requests:
            if request.slot not in self._begun:
                loop.begin(request.slot, request.tokens)
                self._choosing.begin(loop.step.chooser, request.slot)
                self._begun.add(request.slot)
        target.graphs.step.slots.heat(slots, [request.inverse_temperature for request in requests])
        self._choosing.fill(loop.step.chooser, requests, left)
        places = [
            Place(request.slot, request.tokens, most, request.emitted)
            for request, most in zip(requests, left, strict=True)
        ]
        with target.clock.waiting():
            self._steps = deque(loop.run(places, rounds).copy())
        self._order = {slot: row for row, slot in enumerate(slots)}
        return True

    def _loop(self, inverse_temperature: float) -> DeviceLoop | None:
        """That of the target's slots; `None` where it cannot be captured."""
        graphs, chosen = self._target.graphs, (self._choosing.kind, self._stops, inverse_temperature)
        kind = self._rows, self._nodes, self._table, chosen
        if kind not in graphs.loops:
            loop = self._made(inverse_temperature)
            try:
                loop.prepare()
            except (RuntimeError, NotImplementedError) as error:
                self._broken = True
                _log.warning("lade: the device does not draft: %s: %s", type(error).__name__, error)
                return None
            if len(graphs.loops) == MOST_LOOPS:
                graphs.loops.clear()
            graphs.loops[kind] = loop
        found: DeviceLoop = graphs.loops[kind]
        if self._recall is not found.step.growing.recall:  # of an earlier call
            self._recall = found.step.growing.recall
            self._begun.clear()
        return found

    def _made(self, inverse_temperature: float) -> DeviceLoop:
        graphs = self._target.graphs
        step, others = graphs.step, [loop.step.chooser for loop in graphs.loops.values()]
        device = step.slots.lengths.device
        recall = self._recall or Recall(step.slots.count + 1, readable(step.model), device)
        warm = None if self._warm is None else WarmArrays(self._warm(inverse_temperature), device)
        chooser = self._choosing.chooser(step, ROUNDS * (DEPTH + 1), others)
        growing = Growing(recall, warm, self._nodes, coupled=self._choosing.coupled(step, chooser))
        sizes = self._rows, growing, sorted(self._stops), ROUNDS
        own = RoundStep(step.model, step.slots, chooser, *sizes, step.vocabulary, step.kernel)
        if graphs.fused:
            own.fuse()
        return DeviceLoop(own)


def _tree(nodes: np.ndarray) -> Draft:
    """The tree of [T, 4 + 2k] nodes, without those that fill it up, which are the last ones."""
    tokens, parents = nodes[:, 0].tolist(), nodes[:, 1].tolist()
    size = tokens.index(NEVER) if NEVER in tokens else len(tokens)
    depths = [0]
    for parent in parents[1:size]:
        depths.append(depths[parent] + 1)
    sources = ["root", *[SOURCE] * (size - 1)]
    return Draft(tokens[:size], [-1, *parents[1:size]], depths, list(range(size)), sources)


def _outputs(step: np.ndarray, drafts: Sequence[Draft]) -> Outputs:
    """Of [R, T, 4 + 2k] nodes."""
    table = np.concatenate([nodes[: len(draft), TREE:] for nodes, draft in zip(step, drafts, strict=True)])
    table[:, 1] &= NOT_A_NUMBER
    return Outputs.read(lines_of(drafts), table)
