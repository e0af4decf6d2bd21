"""The paper's lookahead branch (arXiv 2402.02057): a W x N window of Jacobi iterations beside the n-grams it yielded.

    position   r     r+1   r+2   r+3   r+4           W = 4, N = 4: levels 0 .. N-2
    level 0   root --- a --- b --- c                 each step's output is a new last level:
    level 1     '-- d  '- e  '- f  '- g              column i yields the n-gram  level0[i] level1[i] level2[i] new[i]
    level 2         '-- h  '- i  '- j  '- k          and every level then moves up by one, one column to the left.

A token hangs from its left neighbour on level 0 and from the token above it on the others, so the window is a tree
under the root like any n-gram, and what hangs from the root is a candidate too. Knows tokens and trees, no model.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from lade.config import Settings
from lade.drafters.base import Predictions
from lade.drafters.ngrams import NgramPool
from lade.request import Request, Verdict
from lade.tree import Draft, TreeBuilder

UNLIMITED = 1 << 30


@dataclass(slots=True)
class _State:
    """levels[0] holds W-1 tokens (the root comes before them), the other N-2 levels hold W each."""

    levels: list[list[int]]
    pool: NgramPool
    noise: random.Random
    prompt: list[int]
    columns: list[int] = field(default_factory=list)  # this step's last-level nodes


class JacobiDrafter:
    """Window and n-gram pool as one tree.

    Args:
        settings: W, N, G, pool_from_prompt, always_forward_one and seed are read.
    """

    def __init__(self, settings: Settings) -> None:
        self.window, self.ngram, self.guesses = settings.window, settings.ngram, settings.guesses
        self.pools_text = settings.pool_from_prompt
        self.shifts_once = settings.always_forward_one
        self.seed = settings.seed
        self.budget = settings.budget or UNLIMITED

    def start(self, request: Request) -> None:
        noise = random.Random(self.seed)
        prompt = request.tokens[: request.prompt_length]
        levels = [noise.choices(prompt, k=self.window - (level == 0)) for level in range(self.ngram - 1)]
        request.state = _State(levels, NgramPool(self.ngram, self.guesses), noise, prompt)
        if self.pools_text:
            request.state.pool.add_text(request.tokens)

    def draft(self, requests: Sequence[Request], depths: Sequence[int]) -> list[Draft]:
        return [self._draft(request, depth) for request, depth in zip(requests, depths, strict=True)]

    def _draft(self, request: Request, depth: int) -> Draft:
        state: _State = request.state
        builder = TreeBuilder(request.tokens[-1])
        # Column i reaches down to depth i + N - 2; a window of c columns has c * (N - 1) nodes, the root among them.
        columns = min(self.window, depth - self.ngram + 3, self.budget // (self.ngram - 1))
        room = self.budget - max(0, columns * (self.ngram - 1) - 1)
        for guess in state.pool.lookup(request.tokens[-1]):
            if len(builder.tokens) + min(depth, self.ngram - 1) > room:
                break
            builder.add_path(0, guess[:depth], "ngram")
        self._add_window(builder, state, columns)
        return builder.build()

    def _add_window(self, builder: TreeBuilder, state: _State, columns: int) -> None:
        if columns < 1:
            state.columns = []
            return
        nodes = [0]
        for token in state.levels[0][: columns - 1]:
            nodes.append(builder.add(nodes[-1], token, "window"))
        builder.queries.update(nodes[: self.ngram])
        for level in state.levels[1:]:
            nodes = [builder.add(above, token, "window") for above, token in zip(nodes, level, strict=False)]
            builder.queries.add(nodes[0])
        builder.queries.update(nodes)
        state.columns = nodes

    def observe(
        self,
        requests: Sequence[Request],
        drafts: Sequence[Draft],
        verdicts: Sequence[Verdict],
        predictions: Predictions,
    ) -> None:
        for slot, (request, draft, verdict) in enumerate(zip(requests, drafts, verdicts, strict=True)):
            state: _State = request.state
            new = [predictions.greedy(slot, node) for node in state.columns]
            self._collect(state, draft.tokens[0], new)
            if self.pools_text:
                state.pool.add_text(request.tokens, start=len(request.tokens) - len(verdict.tokens))
            self._shift(state, new, 1 if self.shifts_once else len(verdict.tokens))

    def _collect(self, state: _State, root: int, new: list[int]) -> None:
        first = [root, *state.levels[0]]
        for gram in zip(first, *state.levels[1:], new, strict=False):
            state.pool.add(gram)

    def _shift(self, state: _State, new: list[int], columns: int) -> None:
        """Move every level up, and all of them `columns` to the left in total; the prompt fills what falls open."""
        if not new:
            return
        levels = [*state.levels, new][1:]
        dropped = columns - 1
        state.levels = [self._filled(state, level[dropped:], self.window) for level in levels]
        del state.levels[0][0]

    def _filled(self, state: _State, level: list[int], width: int) -> list[int]:
        return level + state.noise.choices(state.prompt, k=width - len(level)) if len(level) < width else level
