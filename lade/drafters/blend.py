"""Every free source of drafts in one tree: best first by path probability, under the step's token budget.

A node's children are the mixture of what all stages expect after its path; stages that agree on a token add up, paths
that share a prefix share nodes. Nodes are expanded only when the budget reaches them. Knows tokens and trees, no model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Protocol

from lade.drafters.base import Predictions
from lade.drafters.recycle import LENGTHS
from lade.drafters.stages import (
    FAMILIES,
    RECYCLED,
    REFERENCE,
    SOURCES,
    SUFFIX,
    TOP,
    WARM,
    depth_bucket,
    match_bucket,
    seen_bucket,
)
from lade.drafters.suffix import Cursor, OwnText, ReferenceText
from lade.pools import Pool, fresh_pool
from lade.request import Request, Verdict
from lade.tree import Draft, TreeBuilder

CONTEXT = max(LENGTHS)
SHORTEST = 2  # tokens that a match in the own text must have

CERTAIN = (1.0,)
HOPE = 0.6
Share = tuple[int, int, Sequence[int], Sequence[float]]  # stage, bucket, tokens that it expects, their probabilities


class Warm(Protocol):
    """The model's predictions after every vocabulary entry (`lade.warm.WarmTable`)."""

    def entry(self, token: int) -> tuple[list[int], list[float]]: ...


@dataclass(slots=True)
class _Place:
    """Where a node stands: its last tokens, and its matches in the texts."""

    context: tuple[int, ...]
    own: Cursor
    reference: Cursor | None


@dataclass(slots=True)
class _State:
    pool: Pool
    own: OwnText
    reference: ReferenceText | None
    places: list[_Place] = field(default_factory=list)  # of this step's nodes
    shares: dict[int, list[Share]] = field(default_factory=dict)  # of its expanded nodes


class BlendDrafter:
    """The scored tree.

    Args:
        budget: nodes of a tree, the root included.
        warm: the model's predictions after single tokens, where they are at hand.
        references: per row of the batch a text that its output may repeat, or `None`.
        pool: gives a request what drafting learned so far; a fresh one for each, unless pools outlive requests.
        sources: which of `FAMILIES` may draft.
    """

    def __init__(
        self,
        budget: int,
        warm: Warm | None = None,
        references: Sequence[Sequence[int] | None] | None = None,
        pool: Callable[[], Pool] = fresh_pool,
        sources: Sequence[str] = FAMILIES,
    ) -> None:
        self.budget, self.warm, self.references, self.pool = budget, warm, references, pool
        self.shortest = SHORTEST if "suffix" in sources else math.inf
        self.recycles = "recycled" in sources

    def start(self, request: Request) -> None:
        text = self.references[request.row] if self.references is not None else None
        reference = ReferenceText(text) if text else None
        if reference is not None:
            reference.extend(request.tokens[request.prompt_length :])
        request.state = _State(self.pool(), OwnText(request.tokens), reference)

    def draft(self, requests: Sequence[Request], depths: Sequence[int]) -> list[Draft]:
        drafts = []
        for request, depth in zip(requests, depths, strict=True):
            with request.state.pool.lock:
                drafts.append(self._draft(request, request.state, depth))
        return drafts

    def _draft(self, request: Request, state: _State, deepest: int) -> Draft:
        place = _Place(tuple(request.tokens[-CONTEXT:]), state.own.cursor, _cursor(state.reference))
        builder, state.places, state.shares = TreeBuilder(request.tokens[-1]), [place], {}
        paths = [-1.0]  # negative path probability of every node: the heap takes the smallest first
        # (priority, node, which child, children); -1 in place of the child: the node is yet to be expanded.
        waiting: list[tuple[float, int, int, list[tuple[float, int, int]]]] = [(-1.0, 0, -1, [])]
        while waiting and len(paths) < self.budget:
            priority, node, index, children = heappop(waiting)
            if index < 0:
                children = self._children(state, node, builder.depths[node])
            else:
                _, token, stage = children[index]
                child = builder.add(node, token, SOURCES[stage])
                paths.append(priority)
                state.places.append(_after(state, state.places[node], token))
                if builder.depths[child] < deepest:
                    heappush(waiting, (priority * HOPE, child, -1, []))
            if index + 1 < len(children) and deepest > 0:
                heappush(waiting, (paths[node] * children[index + 1][0], node, index + 1, children))
        builder.queries.update(range(len(paths)))
        return builder.build()

    def _children(self, state: _State, node: int, depth: int) -> list[tuple[float, int, int]]:
        """(probability, token, first stage that expects it) of the likeliest tokens after a node, likeliest first."""
        shares = state.shares[node] = self._shares(state, state.places[node], depth)
        weights, left = state.pool.calibration.weights, 1.0
        mixture: dict[int, float] = {}
        stages: dict[int, int] = {}
        for stage, bucket, tokens, probabilities in shares:
            share = left * weights[stage][bucket]
            left -= share
            for token, probability in zip(tokens, probabilities, strict=True):
                if token in mixture:
                    mixture[token] += share * probability
                else:
                    mixture[token] = share * probability
                    stages[token] = stage
        best = sorted(mixture, key=mixture.__getitem__, reverse=True)[:TOP]
        return [(mixture[token], token, stages[token]) for token in best]

    def _shares(self, state: _State, place: _Place, depth: int) -> list[Share]:
        """What every stage that knows something expects after a node, most specific stage first."""
        shares: list[Share] = []
        for stage, text, cursor in ((REFERENCE, state.reference, place.reference), (SUFFIX, state.own, place.own)):
            if text is None or cursor is None or (stage == SUFFIX and cursor.length < self.shortest):
                continue
            token = text.next_token(cursor)
            if token is not None:
                shares.append((stage, match_bucket(depth, cursor.length), (token,), CERTAIN))
        entries = state.pool.table.lookup(place.context) if self.recycles else []
        for stage, entry in enumerate(entries, RECYCLED):
            if entry is not None:
                shares.append((stage, seen_bucket(depth, entry[2]), entry[0], entry[1]))
        if self.warm is not None:
            shares.append((WARM, depth_bucket(depth), *self.warm.entry(place.context[-1])))
        return shares

    def observe(
        self,
        requests: Sequence[Request],
        drafts: Sequence[Draft],
        verdicts: Sequence[Verdict],
        predictions: Predictions,
    ) -> None:
        for slot, (request, draft, verdict) in enumerate(zip(requests, drafts, verdicts, strict=True)):
            state: _State = request.state
            with state.pool.lock:
                self._learn(state, slot, draft, verdict, predictions)
            state.own.extend(verdict.tokens)
            if state.reference is not None:
                state.reference.extend(verdict.tokens)

    def _learn(self, state: _State, slot: int, draft: Draft, verdict: Verdict, predictions: Predictions) -> None:
        self._calibrate(state, draft, verdict)
        path = set(verdict.path)
        for node in [*(node for node in draft.queries if node not in path), *verdict.path]:  # what counts is newest
            state.pool.table.learn(state.places[node].context, *predictions.top(slot, node))

    def _calibrate(self, state: _State, draft: Draft, verdict: Verdict) -> None:
        """Tell every stage what the model chose where it had a say."""
        for node, choice in zip(verdict.path, verdict.tokens, strict=True):
            shares = state.shares.get(node)
            if shares is None:
                shares = self._shares(state, state.places[node], draft.depths[node])
            state.pool.calibration.learn(
                [
                    (stage, bucket, probabilities[tokens.index(choice)] if choice in tokens else 0.0)
                    for stage, bucket, tokens, probabilities in shares
                ]
            )


def _cursor(text: ReferenceText | None) -> Cursor | None:
    return None if text is None else text.cursor


def _after(state: _State, place: _Place, token: int) -> _Place:
    """Where the child that carries a token stands."""
    reference = None
    if state.reference is not None and place.reference is not None:
        reference = state.reference.follow(place.reference, token)
    return _Place((*place.context, token)[-CONTEXT:], state.own.follow(place.own, token), reference)
