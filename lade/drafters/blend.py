"""Every free source of drafts in one tree: best first by path probability, under the step's token budget.

A node's children are the mixture of what all stages (`lade.drafters.stages`) expect after its path; stages that agree on
a token add up, paths that share a prefix share nodes. Nodes are expanded only when the budget reaches them. A Jacobi
window takes part of the budget as long as it earns it. Knows tokens and trees, no model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Protocol

from lade.config import Settings
from lade.drafters.base import Predictions
from lade.drafters.ngrams import NgramPool
from lade.drafters.recycle import LENGTHS
from lade.drafters.stages import (
    RECYCLED,
    REFERENCE,
    SOURCES,
    SUFFIX,
    TOP,
    WARM,
    WINDOW,
    depth_bucket,
    match_bucket,
    seen_bucket,
)
from lade.drafters.suffix import Cursor, OwnText, ReferenceText
from lade.drafters.window import Window
from lade.pools import Pool, fresh_pool
from lade.request import Request, Verdict
from lade.tree import Draft, TreeBuilder

CONTEXT = max(LENGTHS)
SHORTEST = 2  # tokens that a match in the own text must have
HOPE = 0.6  # what the likeliest child is taken for until its parent is expanded: fewer nodes need expanding
WINDOW_SHARE = 4  # a window begins with at most this fraction of the budget
MEMORY = 0.95  # share of the past in the moving averages that size the window
CERTAIN = (1.0,)
RANKED = tuple(0.5 ** (rank + 1) for rank in range(TOP))  # n-grams, the most recently seen first

Share = tuple[int, int, Sequence[int], Sequence[float]]  # stage, bucket, tokens that it expects, their probabilities
Child = tuple[float, int, int]  # probability, token, first stage that expects it


class Warm(Protocol):
    """The model's predictions after every vocabulary entry (`lade.warm.WarmTable`)."""

    def entry(self, token: int) -> tuple[list[int], list[float]]: ...


@dataclass(slots=True)
class _State:
    pool: Pool
    own: OwnText
    reference: ReferenceText | None
    window: Window | None
    ngrams: NgramPool
    earned: float = 0.0  # tokens per step that the window alone brought, a moving average
    cut: float = 0.0  # path probability of the last node that the budget reached, a moving average
    contexts: list[tuple[int, ...]] = field(default_factory=list)  # of this step's scored nodes
    cursors: dict[int, tuple[Cursor, Cursor | None]] = field(default_factory=dict)  # of those expanded
    shares: dict[int, list[Share]] = field(default_factory=dict)  # of those expanded


class BlendDrafter:
    """The scored tree.

    Args:
        settings: window, ngram, guesses, seed and sources are read.
        budget: nodes of a tree, the root included.
        warm: the model's predictions after single tokens, where they are at hand.
        references: per row of the batch a text that its output may repeat, or `None`.
        pool: gives a request what drafting learned so far; a fresh one for each, unless pools outlive requests.
    """

    def __init__(
        self,
        settings: Settings,
        budget: int,
        warm: Warm | None = None,
        references: Sequence[Sequence[int] | None] | None = None,
        pool: Callable[[], Pool] = fresh_pool,
    ) -> None:
        self.settings, self.budget, self.warm, self.references, self.pool = settings, budget, warm, references, pool
        self.shortest = SHORTEST if "suffix" in settings.sources else math.inf
        self.recycles = "recycled" in settings.sources
        # A warm table knows from the start what a window would have to find out.
        windows = "window" in settings.sources and warm is None
        self.columns = min(settings.window, budget // WINDOW_SHARE // (settings.ngram - 1)) if windows else 0

    def start(self, request: Request) -> None:
        text = self.references[request.row] if self.references is not None else None
        reference = ReferenceText(text) if text else None
        if reference is not None:
            reference.extend(request.tokens[request.prompt_length :])
        prompt, settings = request.tokens[: request.prompt_length], self.settings
        window = Window(prompt, self.columns, settings.ngram, settings.seed) if self.columns else None
        ngrams = NgramPool(settings.ngram, settings.guesses)
        request.state = _State(self.pool(), OwnText(request.tokens), reference, window, ngrams)

    def draft(self, requests: Sequence[Request], depths: Sequence[int]) -> list[Draft]:
        drafts = []
        for request, depth in zip(requests, depths, strict=True):
            with request.state.pool.lock:
                drafts.append(self._draft(request, request.state, depth))
        return drafts

    def _draft(self, request: Request, state: _State, deepest: int) -> Draft:
        builder, window = TreeBuilder(request.tokens[-1]), state.window
        state.contexts = [tuple(request.tokens[-CONTEXT:])]
        state.cursors, state.shares = {}, {}
        columns = min(window.width, deepest - window.ngram + 3) if window is not None else 0
        budget = self.budget - (window.nodes(columns) if window is not None else 0)
        self._grow(builder, state, deepest, budget)
        builder.queries.update(range(len(builder.tokens)))
        if window is not None:
            window.add(builder, columns)
        return builder.build()

    def _grow(self, builder: TreeBuilder, state: _State, deepest: int, budget: int) -> None:
        """Add the nodes that the model is likeliest to choose, until the budget is used."""
        contexts = state.contexts
        paths = [-1.0]  # negative path probability of every node: the heap gives the smallest first
        # (priority, node, which child, children); -1 in place of the child: the node is yet to be expanded.
        waiting: list[tuple[float, int, int, list[Child]]] = [(-1.0, 0, -1, [])] if deepest > 0 else []
        while waiting and len(paths) < budget:
            priority, node, index, children = heappop(waiting)
            if index < 0:
                children = self._children(builder, state, node)
            else:
                _, token, stage = children[index]
                child = builder.add(node, token, SOURCES[stage])
                paths.append(priority)
                contexts.append((*contexts[node], token)[-CONTEXT:])
                if builder.depths[child] < deepest:
                    heappush(waiting, (priority * HOPE, child, -1, []))
            index += 1
            if index < len(children):
                heappush(waiting, (paths[node] * children[index][0], node, index, children))
        state.cut = MEMORY * state.cut - (1 - MEMORY) * paths[-1]

    def _children(self, builder: TreeBuilder, state: _State, node: int) -> list[Child]:
        """The likeliest tokens after a node, likeliest first."""
        shares = state.shares[node] = self._shares(builder, state, node)
        weights, left = state.pool.calibration.weights, 1.0
        mixture: dict[int, float] = {}
        stages: dict[int, int] = {}
        for stage, bucket, tokens, probabilities in shares:
            share = left * weights[stage][bucket]
            left -= share
            for token, probability in zip(tokens, probabilities, strict=False):
                if token in mixture:
                    mixture[token] += share * probability
                else:
                    mixture[token] = share * probability
                    stages[token] = stage
        best = sorted(mixture, key=mixture.__getitem__, reverse=True)[:TOP]
        return [(mixture[token], token, stages[token]) for token in best]

    def _shares(self, builder: TreeBuilder, state: _State, node: int) -> list[Share]:
        """What every stage that knows something expects after a node, most specific stage first."""
        context, depth = state.contexts[node], builder.depths[node]
        shares = list(self._matches(builder, state, node, depth))
        if state.window is not None or len(state.ngrams):
            tokens, length = state.ngrams.following(context)
            if tokens:
                shares.append((WINDOW, seen_bucket(depth, length), tokens[:TOP], RANKED))
        if self.recycles:
            for stage, entry in enumerate(state.pool.table.lookup(context), RECYCLED):
                if entry is not None:
                    shares.append((stage, seen_bucket(depth, entry[2]), entry[0], entry[1]))
        if self.warm is not None:
            shares.append((WARM, depth_bucket(depth), *self.warm.entry(context[-1])))
        return shares

    def _matches(self, builder: TreeBuilder, state: _State, node: int, depth: int) -> Iterator[Share]:
        own, reference = state.cursors[node] = self._cursors(builder, state, node)
        if state.reference is not None and reference is not None:
            token = state.reference.next_token(reference)
            if token is not None:
                yield REFERENCE, match_bucket(depth, reference.length), (token,), CERTAIN
        if own.length >= self.shortest:
            token = state.own.next_token(own)
            if token is not None:
                yield SUFFIX, match_bucket(depth, own.length), (token,), CERTAIN

    def _cursors(self, builder: TreeBuilder, state: _State, node: int) -> tuple[Cursor, Cursor | None]:
        """Where a node's path matches the own text and the reference; its parent is expanded."""
        if node == 0:
            return state.own.cursor, state.reference.cursor if state.reference is not None else None
        own, reference = state.cursors[builder.parents[node]]
        token = builder.tokens[node]
        if state.reference is not None and reference is not None:
            reference = state.reference.follow(reference, token)
        return state.own.follow(own, token), reference

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
                self._calibrate(state, verdict)
                self._recycle(state, slot, draft, verdict, predictions)
            self._move_window(state, slot, draft, verdict, predictions)
            state.own.extend(verdict.tokens)
            if state.reference is not None:
                state.reference.extend(verdict.tokens)

    def _calibrate(self, state: _State, verdict: Verdict) -> None:
        """Tell every stage what the model chose where it had a say."""
        for node, choice in zip(verdict.path, verdict.tokens, strict=True):
            state.pool.calibration.learn(
                [
                    (stage, bucket, probabilities[tokens.index(choice)] if choice in tokens else 0.0)
                    for stage, bucket, tokens, probabilities in state.shares.get(node, ())
                ]
            )

    def _recycle(self, state: _State, slot: int, draft: Draft, verdict: Verdict, predictions: Predictions) -> None:
        """Remember what the model expects after every computed node; what it chose from is the newest."""
        contexts = state.contexts
        for node in range(len(contexts), len(draft)):
            contexts.append((*contexts[draft.parents[node]], draft.tokens[node])[-CONTEXT:])
        path = set(verdict.path)
        for node in [*(node for node in draft.queries if node not in path), *verdict.path]:
            state.pool.table.learn(contexts[node], *predictions.top(slot, node))

    def _move_window(self, state: _State, slot: int, draft: Draft, verdict: Verdict, predictions: Predictions) -> None:
        """Pool the window's n-grams, move it on, and take a column from it where its nodes earn less than others would."""
        window = state.window
        if window is None:
            return
        new = [predictions.greedy(slot, node) for node in window.outputs]
        for gram in window.grams(draft.tokens[0], new):
            state.ngrams.add(gram)
        earned = sum(draft.sources[node] == "window" for node in verdict.path)
        state.earned = MEMORY * state.earned + (1 - MEMORY) * earned
        width = window.width - (state.earned < window.nodes(window.width) * state.cut * (1 - MEMORY))
        window.shift(new, 1, width)
        if width < 1:
            state.window = None
