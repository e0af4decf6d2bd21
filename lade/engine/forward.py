"""The forward of a step, and a second one where a draft makes the logits of its row NaN."""

from __future__ import annotations

from collections.abc import Sequence

from lade.core.request import Request
from lade.core.tree import Draft
from lade.engine.admission import reads
from lade.engine.protocols import Target
from lade.engine.verification import begin
from lade.target.outputs import Outputs


def forward(
    target: Target, requests: Sequence[Request], slots: Sequence[int], drafts: list[Draft], one_pass: bool
) -> tuple[list[Draft], Outputs]:
    """One forward; where a draft makes a row's logits NaN, a second one of all roots without drafts.

    A mask does not hide keys or values that are NaN or infinite, so one such token makes all logits of its tree
    NaN, and plain decoding might never choose it. Its request gets no drafts any more.

    Args:
        slots: of the requests.
        drafts: those of requests that read their prompts are chunks of these.
        one_pass: whether the drafter reads the likeliest tokens of all nodes.

    Returns:
        The drafts that were computed, and their outputs.
    """
    outputs = computed(target, requests, slots, drafts, one_pass)
    drafted = [row for row, draft in enumerate(drafts) if len(draft) > 1 and not reads(requests[row])]
    with_nan = [requests[row] for row in outputs.nan_rows(drafted)] if drafted else []
    if not with_nan:
        return drafts, outputs
    target.discard([request.slot for request in with_nan])
    for request in with_nan:
        request.drafts = False
    drafts = [
        draft if reads(request) else Draft.alone(request.tokens[-1])
        for request, draft in zip(requests, drafts, strict=True)
    ]
    return drafts, computed(target, requests, slots, drafts, one_pass)


def computed(
    target: Target, requests: Sequence[Request], slots: Sequence[int], drafts: Sequence[Draft], one_pass: bool
) -> Outputs:
    """The outputs of a forward, which the requests begin to choose from; arguments as of `forward`."""
    outputs = target.forward(slots, drafts)
    outputs.inverse_temperatures = [request.inverse_temperature for request in requests]
    outputs.one_pass = one_pass
    begin(requests, drafts, outputs)  # before the host reads anything, so that it reads once
    return outputs
