"""Verification of a step's drafts, each by the emission of its request. Knows no drafting and no model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from lade.core.request import Emission, Request, Verdict
from lade.core.tree import Draft
from lade.core.verify import walk
from lade.target.outputs import Outputs

Row = tuple[Request, Draft]


def begin(requests: Sequence[Request], drafts: Sequence[Draft], outputs: Outputs) -> None:
    """Start every emission on the outputs of a forward. What one raises ends its requests alone, with this `error`."""
    for emission, rows in _by_emission(requests, drafts):
        try:
            emission.begin(rows, outputs)
        except Exception as error:  # noqa: BLE001 - user code may raise anything; other requests go on
            _end(rows.values(), error)


def verify(requests: Sequence[Request], drafts: Sequence[Draft]) -> list[Verdict]:
    """Walk every draft and emit its accepted tokens.

    What an emission raises ends its requests alone: their `error` is set, their verdicts have no further tokens.
    """
    return [_verdict(row, request, draft) for row, (request, draft) in enumerate(zip(requests, drafts, strict=True))]


def _by_emission(requests: Sequence[Request], drafts: Sequence[Draft]) -> Iterable[tuple[Emission, dict[int, Row]]]:
    """The rows of each emission, without drafts whose logits nobody asks for, and requests that have ended."""
    found: dict[int, tuple[Emission, dict[int, Row]]] = {}
    for row, (request, draft) in enumerate(zip(requests, drafts, strict=True)):
        if not draft.queries or request.error is not None:
            continue
        emission = request.emission
        assert emission is not None
        if id(emission) not in found:
            found[id(emission)] = emission, {}
        found[id(emission)][1][row] = request, draft
    return found.values()


def _verdict(row: int, request: Request, draft: Draft) -> Verdict:
    if not draft.queries:
        return Verdict(range(len(draft)), [])
    if request.error is not None:
        return Verdict([0], [])
    emission = request.emission
    assert emission is not None
    try:
        return walk(draft, partial(emission.choose, row), partial(emission.emit, row))
    except Exception as error:  # noqa: BLE001 - as above
        _end([(request, draft)], error)
        return Verdict([0], [])


def _end(rows: Iterable[Row], error: Exception) -> None:
    for request, _ in rows:
        request.error, request.finished = error, True
