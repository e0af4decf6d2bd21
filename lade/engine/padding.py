"""The padding that plain decoding computes behind rows that ended early, up to the end of the longest row.

Needed only where the caller gets the cache, scores or logits. Its tokens are known, so one forward takes a chain of
them. Knows requests and targets, no model and no sampling.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from lade.core.request import Request
from lade.core.tree import Draft, TreeBuilder
from lade.engine.admission import retired
from lade.engine.protocols import Target

CHAIN = 512  # most tokens per row in one forward: bounds the memory of masks and logits


def pad_ended_rows(
    requests: Sequence[Request], target: Target, pad: int, note: Callable[[int, torch.Tensor], None] | None
) -> None:
    """Extend every row of the cache to the length of the longest one; requests are not changed.

    Args:
        requests: all rows of the call, finished.
        pad: the padding token.
        note: called with a row and [1, V] logits, first those after its last token, then those after each padding
            token but the last; `None` where they are not recorded.
    """
    longest = max(request.emitted for request in requests)
    tails = [
        Request(request.row, request.tokens[-1:], 1, longest - request.emitted, request.emitted == longest)
        for request in requests
    ]
    active = retired(tails)
    with target.clock.uncounted():
        while active:
            _pad(active, target, pad, note)
            active = retired(active)


def _pad(active: Sequence[Request], target: Target, pad: int, note: Callable[[int, torch.Tensor], None] | None) -> None:
    slots = [tail.slot for tail in active]
    most = min(CHAIN, target.max_nodes(slots))
    drafts = [_chain(tail, pad, most, note is not None) for tail in active]
    outputs = target.forward(slots, drafts)
    for row, (tail, draft) in enumerate(zip(active, drafts, strict=True)):
        if note is not None:
            for node in range(len(draft)):
                note(tail.row, outputs.at(row, node))
        tail.tokens += [pad] * len(draft)
        tail.finished = tail.emitted == tail.limit
    target.keep(slots, [list(range(len(draft))) for draft in drafts])


def _chain(tail: Request, pad: int, most: int, query: bool) -> Draft:
    """The last token and padding behind it, of at most `most` nodes."""
    builder = TreeBuilder(tail.tokens[-1])
    builder.add_path(0, [pad] * (min(most, tail.limit - tail.emitted) - 1), "padding", query)
    return builder.build()
