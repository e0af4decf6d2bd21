"""Verification of a step's drafts, each by the emission of its request. Knows no drafting and no model."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import cast

import torch

from lade.core.noise import checked
from lade.core.request import Emission, Request, Verdict
from lade.core.tree import Draft
from lade.core.verify import Walk, walk
from lade.engine.levels import LevelByLevel, Reached, choose_together
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
    rows = [*zip(requests, drafts, strict=True)]
    levels = {row: each for row, each in enumerate(rows) if isinstance(each[0].emission, LevelByLevel)}
    if len(levels) < 2:
        return [_verdict(row, *each) for row, each in enumerate(rows)]
    known = _by_level({row: each for row, each in levels.items() if each[1].queries and each[0].error is None})
    return [known.get(row) or _verdict(row, *each) for row, each in enumerate(rows)]


def _by_level(rows: Mapping[int, Row]) -> dict[int, Verdict]:
    """Walk all rows at once: the tokens after the nodes of one depth are chosen together."""
    walks = {row: Walk(draft) for row, (_, draft) in rows.items()}
    verdicts = {row: Verdict([0], []) for row in rows}  # of those that raise
    left = list(rows)
    while left:
        level = [Reached(cast("LevelByLevel", rows[row][0].emission), row, walks[row].path[-1]) for row in left]
        left = []
        for reached, token in _chosen(rows, level):
            row, way = reached.row, walks[reached.row]
            with _ending([rows[row]]):
                if way.follow(token, reached.emission.emit(row, checked(token))):
                    left.append(row)
                else:
                    verdicts[row] = way.verdict
    return verdicts


def _chosen(rows: Mapping[int, Row], level: Sequence[Reached]) -> Iterable[tuple[Reached, int]]:
    """The tokens after the nodes of one depth, without those of rows whose emission raises."""
    groups: dict[Hashable, list[tuple[Reached, torch.Tensor]]] = {}
    for reached in level:
        with _ending([rows[reached.row]]):
            scores = reached.emission.own_scores(reached.row, reached.node)
            kind = reached.emission.key, scores.dtype, scores.device, scores.shape[-1]
            groups.setdefault(kind, []).append((reached, scores))
    for group in groups.values():
        tokens: Sequence[int] = ()
        with _ending(rows[reached.row] for reached, _ in group):
            tokens = choose_together(*zip(*group, strict=True))
        yield from zip((reached for reached, _ in group), tokens, strict=False)


@contextmanager
def _ending(rows: Iterable[Row]) -> Iterator[None]:
    """What is raised inside ends these requests."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - as above
        _end(rows, error)


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
