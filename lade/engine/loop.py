"""The decode loop: draft, one forward, verify, keep, learn. Knows no drafting method, no model and no sampling.

A slot is one sequence in the target's KV cache; a request has one from its prefill to its end.
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

    def max_nodes(self, slots: Sequence[int]) -> int:
        """The most nodes that each draft in these slots may have, at least 1."""
        ...

    def forward(self, slots: Sequence[int], drafts: Sequence[Draft]) -> Outputs:
        """One forward of a draft in each of these slots."""
        ...

    def discard(self, slots: Sequence[int]) -> None:
        """Clear the keys and values that the last forward wrote in these slots."""
        ...

    def keep(self, slots: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        """Keep one path in each slot of the last forward, and drop all other nodes."""
        ...


class Emission(Protocol):
    """Chooses tokens as plain decoding does, and emits them."""

    def begin(self, requests: Sequence[Request], drafts: Sequence[Draft], outputs: Outputs) -> None:
        """Start on the outputs of a forward."""
        ...

    def choose(self, row: int, node: int) -> int:
        """The token that plain decoding chooses after this node of a row; the node's path is already emitted."""
        ...

    def emit(self, row: int, token: int) -> bool:
        """Append a chosen token to the request's text. Returns whether a stop rule ends it."""
        ...


def decode(requests: list[Request], first: Outputs, target: Target, drafter: Drafter, emission: Emission) -> None:
    """Decode until every request has finished.

    Args:
        requests: prefilled in their slots, with all their tokens.
        first: the logits after each prompt, as node 0.
    """
    verify(requests, roots(requests), first, emission)
    active = retire(requests)
    for request in active:
        drafter.start(request)
    while active:
        slots = [request.slot for request in active]
        depths = [target.depth_limit(request.slot, request.limit - request.emitted) for request in active]
        max_nodes = target.max_nodes(slots)
        for request in active:
            request.max_nodes = min(request.max_nodes, max_nodes)
        with target.clock.drafting():
            drafts = [draft.within(target.vocabulary) for draft in drafter.draft(active, depths)]
        drafts, outputs = forward(active, drafts, target)
        verdicts = verify(active, drafts, outputs, emission)
        target.keep(slots, [verdict.path for verdict in verdicts])
        for request, draft, verdict in zip(active, drafts, verdicts, strict=True):
            target.clock.tallies[request.row].add(draft, verdict)
        drafter.observe(active, drafts, verdicts, outputs)
        active = retire(active)


def forward(active: Sequence[Request], drafts: list[Draft], target: Target) -> tuple[list[Draft], Outputs]:
    """One forward; where a draft makes a row's logits NaN, a second one of all roots without drafts.

    A mask does not hide keys or values that are NaN or infinite, so one such token makes all logits of its tree NaN,
    and plain decoding might never choose it. Its request gets no drafts any more.
    """
    slots = [request.slot for request in active]
    outputs = target.forward(slots, drafts)
    drafted = [row for row, draft in enumerate(drafts) if len(draft) > 1]
    with_nan = [active[row] for row in outputs.nan_rows(drafted)] if drafted else []
    if not with_nan:
        return drafts, outputs
    target.discard([request.slot for request in with_nan])
    for request in with_nan:
        request.max_nodes = 1
    drafts = roots(active)
    return drafts, target.forward(slots, drafts)


def verify(requests: Sequence[Request], drafts: Sequence[Draft], outputs: Outputs, emission: Emission) -> list[Verdict]:
    """Walk every draft and emit its accepted tokens."""
    emission.begin(requests, drafts, outputs)
    return [walk(draft, partial(emission.choose, row), partial(emission.emit, row)) for row, draft in enumerate(drafts)]


def retire(active: Sequence[Request]) -> list[Request]:
    """The requests that have not finished; the last ones take the places of those that have."""
    left = list(active)
    for row in range(len(left) - 1, -1, -1):
        if left[row].finished:
            left[row] = left[-1]
            del left[-1]
    return left
