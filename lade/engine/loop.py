"""The decode loop: draft, one forward, verify, keep, learn. Knows no drafting method, no model and no sampling.

A slot is a row of the target's cache: slot i belongs to the i-th active request.
"""

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
    """What computes trees: a model, or two of them for contrastive decoding."""

    @property
    def clock(self) -> Clock: ...

    @property
    def vocabulary(self) -> int:
        """The model reads token ids below this one."""
        ...

    def depth_limit(self, slot: int, remaining: int) -> int:
        """The largest depth of a draft in this slot, whose request may emit `remaining` more tokens."""
        ...

    def max_nodes(self, rows: int) -> int:
        """The most nodes that each draft of the first rows may have, at least 1."""
        ...

    def forward(self, drafts: Sequence[Draft]) -> Outputs:
        """One forward of a draft per row, for the first n rows."""
        ...

    def discard(self, slots: Sequence[int]) -> None:
        """Clear the keys and values that the last forward wrote in these slots."""
        ...

    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        """Keep one path per row of the last forward in the cache, and drop all other nodes."""
        ...

    def swap(self, one: int, other: int) -> None:
        """Exchange two slots."""
        ...


class Emission(Protocol):
    """Chooses tokens as plain decoding does, and emits them."""

    def begin(self, requests: Sequence[Request], drafts: Sequence[Draft], outputs: Outputs) -> None:
        """Start on the outputs of a forward."""
        ...

    def choose(self, slot: int, node: int) -> int:
        """The token that plain decoding chooses after this node; the node's path is already emitted."""
        ...

    def emit(self, slot: int, token: int) -> bool:
        """Append a chosen token to the request's text. Returns whether a stop rule ends it."""
        ...


def decode(requests: list[Request], first: Outputs, target: Target, drafter: Drafter, emission: Emission) -> None:
    """Decode until every request has finished.

    Args:
        requests: request i is prefilled in slot i, with all its tokens.
        first: the logits after each prompt, as node 0.
    """
    verify(requests, roots(requests), first, emission)
    active = retire(requests, target)
    for request in active:
        drafter.start(request)
    while active:
        depths = [target.depth_limit(slot, request.limit - request.emitted) for slot, request in enumerate(active)]
        max_nodes = target.max_nodes(len(active))
        for request in active:
            request.max_nodes = min(request.max_nodes, max_nodes)
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
    """One forward; where a draft makes a row's logits NaN, a second one of all roots without drafts.

    A mask does not hide keys or values that are NaN or infinite, so one such token makes all logits of its tree NaN,
    and plain decoding might never choose it. Its request gets no drafts any more.
    """
    outputs = target.forward(drafts)
    drafted = [slot for slot, draft in enumerate(drafts) if len(draft) > 1]
    with_nan = outputs.nan_rows(drafted) if drafted else []
    if not with_nan:
        return drafts, outputs
    target.discard(with_nan)
    for slot in with_nan:
        active[slot].max_nodes = 1
    drafts = roots(active)
    return drafts, target.forward(drafts)


def verify(requests: Sequence[Request], drafts: Sequence[Draft], outputs: Outputs, emission: Emission) -> list[Verdict]:
    """Walk every draft and emit its accepted tokens."""
    emission.begin(requests, drafts, outputs)
    return [
        walk(draft, partial(emission.choose, slot), partial(emission.emit, slot)) for slot, draft in enumerate(drafts)
    ]


def retire(active: list[Request], target: Target) -> list[Request]:
    """Return the requests that have not finished; they move to the first slots, the others behind them."""
    active = list(active)
    for slot in range(len(active) - 1, -1, -1):
        if active[slot].finished:
            last = len(active) - 1
            target.swap(slot, last)
            active[slot] = active[last]
            del active[last]
    return active
