"""The decode loop: draft, one forward, walk, keep, learn. It knows no method, no model and no sampling by name."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from lade.core.drafter import Drafter, roots
from lade.core.request import Request, Verdict
from lade.core.stats import Clock
from lade.core.tree import Draft
from lade.core.verify import walk
from lade.target.model import Outputs


class Target(Protocol):
    """What decodes trees: a model, or several of them side by side."""

    @property
    def clock(self) -> Clock: ...

    @property
    def vocabulary(self) -> int:
        """Token ids below this one can be read."""
        ...

    def depth_limit(self, slot: int, remaining: int) -> int:
        """How deep a draft of this row may reach where so many tokens are still allowed."""
        ...

    def room(self, rows: int) -> int:
        """How many nodes each draft of the first rows may have, at least 1."""
        ...

    def forward(self, drafts: Sequence[Draft]) -> Outputs:
        """One forward for the drafts of the first n rows."""
        ...

    def spoiled(self, slots: Sequence[int], outputs: Outputs) -> list[int]:
        """Those of the rows whose logits after the root hold NaN."""
        ...

    def discard(self, slots: Sequence[int]) -> None:
        """Nothing of what the last forward wrote in these rows is left."""
        ...

    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        """The cache holds exactly the accepted prefix afterwards; the next roots stand behind it."""
        ...

    def swap(self, one: int, other: int) -> None:
        """Exchange two rows."""
        ...


class Emission(Protocol):
    """Chooses tokens as plain decoding would, and hands them on."""

    def begin(self, requests: Sequence[Request], drafts: Sequence[Draft], outputs: Outputs) -> None:
        """A forward is done; its tokens will be chosen and emitted now."""
        ...

    def choose(self, slot: int, node: int) -> int:
        """The token that plain decoding chooses after this node, the node's path being the text so far."""
        ...

    def emit(self, slot: int, token: int) -> bool:
        """Append a chosen token to the request's text; True where a stop rule fires."""
        ...


def decode(requests: list[Request], first: Outputs, target: Target, drafter: Drafter, emission: Emission) -> None:
    """Decode until every request has finished.

    Args:
        requests: row i of the target's cache is requests[i], prefilled with all its tokens.
        first: the logits after each prompt, as node 0.
    """
    verify(requests, roots(requests), first, emission)
    active = retire(requests, target)
    for request in active:
        drafter.start(request)
    while active:
        depths = [target.depth_limit(slot, request.limit - request.emitted) for slot, request in enumerate(active)]
        room = target.room(len(active))
        for request in active:
            request.room = min(request.room, room)
        with target.clock.drafting():
            drafts = [draft.within(target.vocabulary) for draft in drafter.draft(active, depths)]
        drafts, outputs = forward(active, drafts, target)
        verdicts = verify(active, drafts, outputs, emission)
        target.keep([verdict.path for verdict in verdicts])
        for request, draft, verdict in zip(active, drafts, verdicts, strict=True):
            target.clock.tallies[request.row].add(draft, verdict)
        drafter.observe(active, drafts, verdicts, outputs)
        active = retire(active, target)


def forward(active: Sequence[Request], drafts: list[Draft], target: Target) -> tuple[list[Draft], Outputs]:
    """One forward, and where a drafted token spoiled a row a second one: of every row's root alone.

    No mask hides keys or values that are NaN or infinite: all logits of such a tree are NaN, and plain decoding may
    never come to the token. A row that this happened to drafts nothing any more.
    """
    outputs = target.forward(drafts)
    drafted = [slot for slot, draft in enumerate(drafts) if len(draft) > 1]
    spoiled = target.spoiled(drafted, outputs) if drafted else []
    if not spoiled:
        return drafts, outputs
    target.discard(spoiled)
    for slot in spoiled:
        active[slot].room = 1
    drafts = roots(active)
    return drafts, target.forward(drafts)


def verify(requests: Sequence[Request], drafts: Sequence[Draft], outputs: Outputs, emission: Emission) -> list[Verdict]:
    """Walk every draft, emitting as it goes."""
    emission.begin(requests, drafts, outputs)
    return [
        walk(draft, partial(emission.choose, slot), partial(emission.emit, slot)) for slot, draft in enumerate(drafts)
    ]


def retire(active: list[Request], target: Target) -> list[Request]:
    """Move finished requests behind the others, so that the active ones fill the target's first rows."""
    active = list(active)
    for slot in range(len(active) - 1, -1, -1):
        if active[slot].finished:
            last = len(active) - 1
            target.swap(slot, last)
            active[slot] = active[last]
            del active[last]
    return active
