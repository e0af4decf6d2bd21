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
from lade.core.verify import walk, walking
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
    levels = {row: each for row, each in enumerate(rows) if _goes_by_level(*each)}
    known = _by_level(levels) if len(levels) > 1 else {}
    return [known.get(row) or _verdict(row, *each) for row, each in enumerate(rows)]


def _goes_by_level(request: Request, draft: Draft) -> bool:
    return isinstance(request.emission, LevelByLevel) and bool(draft.queries) and request.error is None


def _by_level(rows: Mapping[int, Row]) -> dict[int, Verdict]:
    """Walk all rows at once: the tokens after the nodes of one depth are chosen together."""
    walks = {row: walking(draft) for row, (_, draft) in rows.items()}
    emissions = {row: cast("LevelByLevel", request.emission) for row, (request, _) in rows.items()}
    level = [Reached(emissions[row], row, next(walk)) for row, walk in walks.items()]
    verdicts = {row: Verdict([0], []) for row in rows}  # of those that raise
    while level:
        following: list[Reached] = []
        for reached, token in _chosen(rows, level):
            with _ending([rows[reached.row]]):
                ended = reached.emission.emit(reached.row, checked(token))
                try:
                    following.append(reached._replace(node=walks[reached.row].send((token, ended))))
                except StopIteration as end:
                    verdicts[reached.row] = end.value
        level = following
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
