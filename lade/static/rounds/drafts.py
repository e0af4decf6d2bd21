"""Steps that the device has drafted, computed and walked by itself, handed to the decode loop one by one.

The loop verifies, emits, counts and learns as after a step of its own. What it has not asked for when it stops, when
its rows change, or when a step of its own moves them on, is dropped: each visit tells the device all that it begins
with.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence

from lade.core.request import Request
from lade.core.tree import Draft
from lade.memory.backoff import Backoff
from lade.pace.turns import Turns
from lade.static.buckets import NODES, rows_bucket
from lade.static.rounds.ahead import Ahead
from lade.static.rounds.choosing import Shared, Way, shared
from lade.static.rounds.growing import DEPTH, Growing
from lade.static.rounds.loop import DeviceLoop, Place, tokens_of
from lade.static.rounds.step import RoundStep
from lade.static.rounds.tables import Tables
from lade.static.target import StaticTarget
from lade.target.outputs import Outputs

ROUNDS = 4  # of a visit, at most
MOST_NODES = 64  # of a row's tree
TAKEN = 2  # tokens that a round is at least expected to emit
MOST_LOOPS = 8  # that one set of graphs keeps, the latest used

_log = logging.getLogger(__name__)


class DeviceDrafts:
    """For the requests of one decode loop.

    Args:
        nodes: the most of a row's tree.
        warm: gives the model's predictions from before any text, at an inverse temperature; `None`: there are none.
        table: which table `warm` reads.
        turns: decide between these steps and the host's, for each bucket of rows; `None`: these, wherever they can be.
    """

    def __init__(
        self,
        target: StaticTarget,
        nodes: int,
        warm: Callable[[float], Backoff] | None,
        table: str | None,
        turns: Callable[[], Turns] | None,
    ) -> None:
        self._target, self._nodes, self._warm, self._table = target, min(nodes, MOST_NODES), warm, table
        self._turns = None if turns is None else defaultdict[int, Turns](turns)
        self._turn: Turns | None = None  # which measures the running step
        self._before = 0  # tokens of its requests before it
        self._ways: dict[Request, Way] = {}
        self._tables: Tables | None = None
        self._begun: dict[int, Request] = {}  # slot -> the request that the tables know there
        self._with_nan: set[Request] = set()
        self._ahead = Ahead()
        self._broken = nodes < 2

    def next(self, requests: Sequence[Request]) -> tuple[list[Draft], Outputs] | None:
        """The next step of these requests, with what the model chose; `None` where the host is to draft."""
        self._before = sum(request.emitted for request in requests)
        self._target.untimed = False
        if self._ahead.fits(requests):
            if self._turn is not None:
                self._turn.begin()
        elif not self._made(requests):
            self._ahead = Ahead()
            return None
        step = self._ahead.next(requests)
        if not all(step.accepted):
            self._ahead = Ahead()
            self._with_nan.update(requests[row] for row in step.with_nan)  # a step of the loop finds out of whose draft
            self._target.discard([request.slot for request in requests])
            return None
        drafts, outputs = step.read()
        self._target.made(drafts)
        return drafts, outputs

    def ended(self, requests: Sequence[Request]) -> None:
        """The step of these requests is over, whoever drafted it."""
        if self._turn is not None:
            tokens = sum(request.emitted for request in requests) - self._before
            self._turn.end(tokens / len(requests), counts=not self._target.untimed)
        if any(request.finished for request in requests):
            self._ways = {request: way for request, way in self._ways.items() if not request.finished}
            self._begun = {slot: request for slot, request in self._begun.items() if not request.finished}

    def _made(self, requests: Sequence[Request]) -> bool:
        """Have the device make the next steps, where it can and it is its turn. Returns whether it has."""
        self._turn = None
        if not self._can(requests):
            return False
        self._ways = {request: self._ways.get(request) or _way(request) for request in requests}
        common = shared([*self._ways.values()])
        if common is None:
            return False
        if self._turns is not None:
            self._turn = self._turns[rows_bucket(len(requests))]
            if not self._turn.next():
                return False
        if self._visit(requests, common):
            return True
        self._turn = None
        return False

    def _can(self, requests: Sequence[Request]) -> bool:
        """Whether the device may choose the tokens of all these, and knows as much of what follows as the host."""
        self._with_nan.intersection_update(requests)
        return not (self._broken or self._with_nan) and all(
            request.emission is not None
            and request.emission.choosing is not None
            and request.forced is None
            and request.slot in self._target.lengths
            for request in requests
        )

    def _visit(self, requests: Sequence[Request], common: Shared) -> bool:
        target, slots = self._target, [request.slot for request in requests]
        left = [1 + target.depth_limit(request.slot, request.limit - request.emitted) for request in requests]
        if min(left) < 1:
            return False
        rounds = max(1, min(ROUNDS, min(left) // TAKEN))
        rows = rows_bucket(len(requests))
        nodes = min(self._nodes, NODES[-1] // rows)
        longest = max(len(request.tokens) for request in requests)
        target.make_room(tokens_of(longest, rounds, nodes, DEPTH))
        tables = self._known_to()
        loop = self._loop(tables, rows, nodes, common)
        if loop is None:
            return False
        target.settle(slots)
        target.graphs.step.slots.heat(slots, [request.inverse_temperature for request in requests])
        self._tell(tables, requests, left)
        places = [
            Place(request.slot, request.tokens, most, request.emitted)
            for request, most in zip(requests, left, strict=True)
        ]
        with target.clock.waiting():
            self._ahead = Ahead(requests, loop.run(places, rounds).copy())
        return True

    def _known_to(self) -> Tables:
        """The tables of the slots, which know the requests in `_begun`."""
        graphs = self._target.graphs
        tables: Tables = graphs.tables or Tables(graphs.step, ROUNDS * (DEPTH + 1))
        if self._tables is not tables:
            self._begun.clear()
        self._tables = graphs.tables = tables
        return tables

    def _tell(self, tables: Tables, requests: Sequence[Request], left: Sequence[int]) -> None:
        """Have all on the device that it needs of requests, which may still emit so many tokens."""
        for request, most in zip(requests, left, strict=True):
            if self._begun.get(request.slot) is not request:
                tables.begin(request, self._ways[request])
                self._begun[request.slot] = request
            tables.fill(request, self._ways[request], most)

    def _loop(self, tables: Tables, rows: int, nodes: int, common: Shared) -> DeviceLoop | None:
        """That of the target's slots; `None` where it cannot be captured."""
        loops: dict[Hashable, DeviceLoop] = self._target.graphs.loops
        kind = rows, nodes, self._table, common
        loop = loops.pop(kind, None)
        self._target.untimed = loop is None
        if loop is None:
            loop = self._new(tables, rows, nodes, common)
            try:
                loop.prepare()
            except (RuntimeError, NotImplementedError) as error:
                self._broken = True
                _log.warning("lade: the device does not draft: %s: %s", type(error).__name__, error)
                return None
        loops[kind] = loop
        if len(loops) > MOST_LOOPS:
            del loops[next(iter(loops))]
        return loop

    def _new(self, tables: Tables, rows: int, nodes: int, common: Shared) -> DeviceLoop:
        graphs, way = self._target.graphs, next(iter(self._ways.values()))
        chooser = tables.chooser(common, way)
        warm = None if self._warm is None else tables.warm(self._table, self._warm)
        growing = Growing(tables.recall, warm, nodes, coupled=tables.coupled(chooser))
        step = graphs.step
        own = RoundStep(
            step.model, step.slots, chooser, rows, growing, tables.ends, ROUNDS, step.vocabulary, step.kernel
        )
        own.multiplies = step.multiplies
        if graphs.fused:
            own.fuse()
        return DeviceLoop(own)


def _way(request: Request) -> Way:
    assert request.emission is not None
    assert request.emission.choosing is not None
    return Way.of(request.emission.choosing)
