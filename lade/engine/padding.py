"""What plain decoding computes behind rows that have ended: padding, up to the end of the longest row.

These tokens are known, so chains of them take one forward. It is needed only where the caller sees the cache, scores or
logits. Knows requests and targets, no model and no choosing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from lade.core.request import Request
from lade.core.tree import Draft, TreeBuilder
from lade.engine.loop import Target, retire

CHAIN = 512  # tokens of a row in one forward: bounds its masks and logits


class PaddedTarget(Target, Protocol):
    @property
    def order(self) -> Sequence[int]:
        """Which row of the user's batch stands where."""
        ...


def pad_ended_rows(
    requests: Sequence[Request], target: PaddedTarget, pad: int, note: Callable[[int, torch.Tensor], None] | None
) -> None:
    """Every row of the cache is as long as the longest afterwards; the requests stay as they are.

    Args:
        requests: all rows of the call, finished.
        pad: the padding token.
        note: takes a row and the [1, V] logits after its last token, then those after each token of padding but the
            last; `None` where nobody wants them.
    """
    longest = max(request.emitted for request in requests)
    tails = [
        Request(request.row, request.tokens[-1:], 1, longest - request.emitted, request.emitted == longest)
        for request in requests
    ]
    active = retire([tails[row] for row in target.order], target)
    with target.clock.uncounted():
        while active:
            _pad(active, target, pad, note)
            active = retire(active, target)


def _pad(
    active: Sequence[Request], target: PaddedTarget, pad: int, note: Callable[[int, torch.Tensor], None] | None
) -> None:
    most = min(CHAIN, target.room(len(active)))
    drafts = [_chain(tail, pad, most, note is not None) for tail in active]
    outputs = target.forward(drafts)
    for slot, (tail, draft) in enumerate(zip(active, drafts, strict=True)):
        if note is not None:
            for node in range(len(draft)):
                note(tail.row, outputs.at(slot, node))
        tail.tokens += [pad] * len(draft)
        tail.finished = tail.emitted == tail.limit
    target.keep([list(range(len(draft))) for draft in drafts])


def _chain(tail: Request, pad: int, most: int, query: bool) -> Draft:
    """The last token and the padding behind it, as far as one forward of so many nodes goes."""
    builder = TreeBuilder(tail.tokens[-1])
    builder.add_path(0, [pad] * (min(most, tail.limit - tail.emitted) - 1), "padding", query)
    return builder.build()
