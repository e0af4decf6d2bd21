"""Every free source of drafts in one tree: best first by path probability, under the step's token budget.

A node's children are what `lade.memory.mixture` expects after its path; paths that share a prefix share nodes. Nodes
are expanded only when the budget reaches them. A Jacobi window takes part of the budget as long as it earns it. Knows
tokens and trees, no model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from lade.config.settings import Settings
from lade.core.drafter import Predictions, roots
from lade.core.request import Request, Verdict
from lade.core.tree import Draft, TreeBuilder
from lade.drafters.window import Window
from lade.memory.mixture import Mixture, Place, Warm
from lade.memory.ngrams import NgramPool
from lade.memory.pools import Pool, fresh_pool
from lade.memory.stages import SOURCES
from lade.memory.suffix import OwnText, ReferenceText
from lade.pace.pace import WholeBudget

HOPE = 0.6  # what the likeliest child is taken for until its parent is expanded: fewer nodes need expanding
SLACK = 0.08  # tokens this far below the path probability of a usual tree's last node are not looked at
SUMMED = 3.0  # and tokens whose stages together are this far above that still wait for their turn
LEAST = 1e-300  # path probability below which no tree goes, however much room it has
WINDOW_SHARE = 4  # a window begins with at most this fraction of the budget
MEMORY = 0.95  # share of the past in the moving averages
EXPAND = -1  # in place of a token: the node is yet to be expanded


@dataclass(slots=True)
class _State:
    mixture: Mixture
    window: Window | None
    cut: float  # path probability of the last node that the budget reached, a moving average
    full: bool = False  # whether the last tree used its budget; where it did not, no token is left out
    earned: float = 0.0  # tokens per step that the window alone brought, a moving average
    read: int = 0  # tokens of the text that the mixture has taken in
    places: list[Place] = field(default_factory=list)  # of this step's nodes
    masses: list[float] = field(default_factory=list)  # path probabilities of those that were grown
    hopes: dict[int, float] = field(default_factory=dict)  # tokens that were grown under the root, their probabilities


class BlendDrafter:
    """The scored tree.

    Args:
        settings: window, ngram, guesses, seed and sources are read.
        budget: nodes of a tree, the root included.
        warm: the model's predictions from before any text, where they are at hand.
        references: per row of the batch a text that its output may repeat, or `None`.
        pool: gives a request what drafting learned so far; a fresh one for each, unless pools outlive requests.
        pace: chooses how much of the budget every step takes (`lade.pace.pace.Pace`); `None`: all of it.
    """

    def __init__(
        self,
        settings: Settings,
        budget: int,
        warm: Warm | None = None,
        references: Sequence[Sequence[int] | None] | None = None,
        pool: Callable[[], Pool] = fresh_pool,
        pace: WholeBudget | None = None,
    ) -> None:
        self.settings, self.budget, self.warm, self.references, self.pool = settings, budget, warm, references, pool
        self.pace = pace or WholeBudget(budget)
        # A warm table knows from the start what a window would have to find out.
        windows = "window" in settings.sources and warm is None
        self.columns = min(settings.window, budget // WINDOW_SHARE // (settings.ngram - 1)) if windows else 0
        self._looked = True  # whether the running step looks for drafts, and learns

    def start(self, request: Request) -> None:
        settings, prompt = self.settings, request.tokens[: request.prompt_length]
        text = self.references[request.row] if self.references is not None else None
        reference = ReferenceText(text) if text else None
        if reference is not None:
            reference.extend(request.tokens[request.prompt_length :])
        mixture = Mixture(
            self.pool(),
            recycles="recycled" in settings.sources,
            own=OwnText(request.tokens) if "suffix" in settings.sources else None,
            reference=reference,
            ngrams=NgramPool(settings.ngram, settings.guesses) if self.columns else None,
            warm=self.warm,
        )
        window = Window(prompt, self.columns, settings.ngram, settings.seed) if self.columns else None
        request.state = _State(mixture, window, cut=0.5 / self.budget, read=len(request.tokens))

    def draft(self, requests: Sequence[Request], depths: Sequence[int]) -> list[Draft]:
        context = max(len(request.tokens) for request in requests)
        room = self.pace.begin(context, len(requests))
        self._looked = room > 1
        drafts = self._drafts(requests, depths, room, context) if self._looked else roots(requests)
        self.pace.carry(max(map(len, drafts)), context, len(drafts))
        return drafts

    def _drafts(self, requests: Sequence[Request], depths: Sequence[int], room: int, context: int) -> list[Draft]:
        builders = [self._grown(request, depth, room) for request, depth in zip(requests, depths, strict=True)]
        self._cut([request.state for request in requests], builders, context)
        parts = zip(requests, builders, depths, strict=True)
        return [self._windowed(request, builder, depth).build() for request, builder, depth in parts]

    def _grown(self, request: Request, deepest: int, room: int) -> TreeBuilder:
        builder, state = TreeBuilder(request.tokens[-1]), request.state
        state.mixture.extend(request.tokens[state.read :])
        state.read = len(request.tokens)
        budget = min(self.budget, request.max_nodes)
        window = 0 if state.window is None else state.window.nodes(self._columns(state.window, deepest, budget))
        state.places, state.masses = [state.mixture.place(request.tokens)], [1.0]
        with state.mixture.pool.lock:
            self._grow(builder, state, deepest, min(room, budget - window))
        return builder

    def _cut(self, states: list[_State], builders: list[TreeBuilder], context: int) -> None:
        """Leave out of all rows what costs more than it is expected to bring."""
        repeats = any(state.mixture.repeats for state in states)
        nodes = self.pace.choose([state.masses for state in states], context, repeats)
        for state, builder in zip(states, builders, strict=True):
            state.hopes = {
                token: mass
                for token, mass, depth in zip(builder.tokens, state.masses, builder.depths, strict=True)
                if depth == 1
            }
            builder.cut(nodes)
            del state.places[nodes:]

    def _windowed(self, request: Request, builder: TreeBuilder, deepest: int) -> TreeBuilder:
        state: _State = request.state
        builder.queries.update(range(len(builder.tokens)))
        if state.window is not None:
            columns = self._columns(state.window, deepest, min(self.budget, request.max_nodes))
            if self.pace.adapts:  # in proportion to the tree
                columns = min(columns, len(builder.tokens) // (WINDOW_SHARE - 1) // (state.window.ngram - 1))
            state.window.add(builder, columns)
        return builder

    def _columns(self, window: Window, deepest: int, budget: int) -> int:
        return min(window.width, deepest - window.ngram + 3, budget // WINDOW_SHARE // (window.ngram - 1))

    def _grow(self, builder: TreeBuilder, state: _State, deepest: int, budget: int) -> None:
        """Add the nodes that the model is likeliest to choose, until the budget is used."""
        mixture, places, depths = state.mixture, state.places, builder.depths
        floor, last = max(LEAST, SLACK * state.cut * state.full), 0.0
        least = -floor * SUMMED
        # Negative path probability (the heap gives the smallest first), node, a token that may follow it, its stage.
        waiting: list[tuple[float, int, int, int]] = [(-HOPE, 0, EXPAND, 0)] if deepest > 0 else []
        while waiting and len(places) < budget:
            priority, node, token, stage = heappop(waiting)
            if token == EXPAND:
                path = priority / HOPE
                masses, stages = mixture.expect(places[node], depths[node], -floor / path)
                for token, mass in masses.items():
                    priority = path * mass
                    if priority <= least:
                        heappush(waiting, (priority, node, token, stages[token]))
                continue
            last = priority
            state.masses.append(-priority)
            builder.append(node, token, SOURCES[stage])
            places.append(mixture.follow(places[node], token))
            if depths[-1] < deepest:
                heappush(waiting, (priority * HOPE, len(depths) - 1, EXPAND, 0))
        state.full = len(places) == budget
        state.cut = MEMORY * state.cut - (1 - MEMORY) * (last if state.full else 0.0)

    def observe(
        self,
        requests: Sequence[Request],
        drafts: Sequence[Draft],
        verdicts: Sequence[Verdict],
        predictions: Predictions,
    ) -> None:
        self.pace.verified()
        if self._looked:  # else this step is to take no longer than one of plain decoding
            for slot, (request, draft, verdict) in enumerate(zip(requests, drafts, verdicts, strict=True)):
                self._learn(request.state, slot, draft, verdict, predictions)

    def end(self) -> Mapping[str, int]:
        return self.pace.end()

    def _learn(self, state: _State, slot: int, draft: Draft, verdict: Verdict, predictions: Predictions) -> None:
        with state.mixture.pool.lock:
            self._remember(state, slot, draft, verdict, predictions)
        self.pace.learn(sum(state.hopes.values()), state.hopes.get(verdict.tokens[0], 0.0))
        self._move_window(state, slot, draft, verdict, predictions)

    def _remember(self, state: _State, slot: int, draft: Draft, verdict: Verdict, predictions: Predictions) -> None:
        """Weigh the stages, and remember what the model expects after every computed node, what it chose from last."""
        mixture, places, table = state.mixture, state.places, state.mixture.pool.table
        for node in range(len(places), len(draft)):
            places.append(mixture.follow(places[draft.parents[node]], draft.tokens[node]))
        for node, choice in zip(verdict.path, verdict.tokens, strict=True):
            mixture.learn(places[node], draft.depths[node], choice)
        # One step in many teaches hardly anything, and takes most of what such a look does.
        if not mixture.recycles or (len(draft) == 1 and self.pace.fruitless):
            return
        path = set(verdict.path)
        for node in [*(node for node in draft.queries if node not in path), *verdict.path]:
            table.learn(places[node][0], predictions.top(slot, node))
        table.forget()

    def _move_window(self, state: _State, slot: int, draft: Draft, verdict: Verdict, predictions: Predictions) -> None:
        """Pool the window's n-grams, move it on, and end a column where its nodes earn less than others would."""
        window, ngrams = state.window, state.mixture.ngrams
        if window is None or ngrams is None:
            return
        new = [predictions.greedy(slot, node) for node in window.outputs if node < len(draft)]
        if not new:
            return
        for gram in window.grams(draft.tokens[0], new):
            ngrams.add(gram)
        earned = sum(draft.sources[node] == "window" for node in verdict.path)
        state.earned = MEMORY * state.earned + (1 - MEMORY) * earned
        width = window.width - (state.earned < window.nodes(window.width) * state.cut * (1 - MEMORY))
        window.shift(new, 1, width)
        if width < 1:
            state.window = None
