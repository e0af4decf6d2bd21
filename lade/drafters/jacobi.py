"""Lookahead decoding exactly as in the paper (arXiv 2402.02057): window and n-gram pool in one draft tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lade.config.settings import MOST_TOKENS, Settings
from lade.core.drafter import Predictions
from lade.core.request import Request, Verdict
from lade.core.tree import Draft, TreeBuilder
from lade.drafters.window import Window
from lade.memory.ngrams import NgramPool


@dataclass(slots=True)
class _State:
    window: Window
    pool: NgramPool


class JacobiDrafter:
    """Window and n-gram pool as one tree.

    Args:
        settings: W, N, G, budget, pool_from_prompt, always_forward_one and seed are read.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.budget = settings.budget or MOST_TOKENS

    def start(self, request: Request) -> None:
        settings = self.settings
        window = Window(request.known_text, settings.window, settings.ngram, settings.seed)
        pool = NgramPool(settings.ngram, settings.guesses)
        if settings.pool_from_prompt:
            pool.add_text(request.tokens)
        request.state = _State(window, pool)

    def draft(self, requests: Sequence[Request], depths: Sequence[int]) -> list[Draft]:
        return [self._draft(request, request.state, depth) for request, depth in zip(requests, depths, strict=True)]

    def _draft(self, request: Request, state: _State, depth: int) -> Draft:
        builder, ngram = TreeBuilder(request.tokens[-1]), self.settings.ngram
        budget = min(self.budget, request.max_nodes)
        # Column i reaches down to depth i + N - 2.
        columns = min(self.settings.window, depth - ngram + 3, budget // (ngram - 1))
        room = budget - state.window.nodes(columns)
        for guess in state.pool.lookup(request.tokens[-1]):
            if len(builder.tokens) + min(depth, ngram - 1) > room:
                break
            builder.add_path(0, guess[:depth], "ngram")
        state.window.add(builder, columns)
        return builder.build()

    def observe(
        self,
        requests: Sequence[Request],
        drafts: Sequence[Draft],
        verdicts: Sequence[Verdict],
        predictions: Predictions,
    ) -> None:
        for slot, (request, draft, verdict) in enumerate(zip(requests, drafts, verdicts, strict=True)):
            if not verdict.tokens:
                continue
            state: _State = request.state
            new = [predictions.greedy(slot, node) for node in state.window.outputs if node < len(draft)]
            for gram in state.window.grams(draft.tokens[0], new):
                state.pool.add(gram)
            if self.settings.pool_from_prompt:
                state.pool.add_text(request.tokens, start=len(request.tokens) - len(verdict.tokens))
            state.window.shift(new, 1 if self.settings.always_forward_one else len(verdict.tokens))

    def pause(self) -> None:
        """Nothing is timed."""

    def stop(self, request: Request) -> None:
        request.state = None

    def end(self) -> Mapping[str, int]:
        return {}
