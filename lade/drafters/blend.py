"""Every source of drafts in one draft tree: best first by path probability, under the step's token budget.

A node's children are what `lade.memory.mixture` predicts after its path; paths that share a prefix share nodes. A node
is expanded only when the budget reaches it. A Jacobi window takes part of the budget as long as its n-grams are
accepted often enough. Knows tokens and trees, no model; of the sources only the window by name.
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
from lade.memory.mixture import Mixture, Place
from lade.memory.ngrams import NgramPool
from lade.memory.pools import Pool, fresh_pool
from lade.memory.source import Start, Warm
from lade.memory.sources import opened, stages
from lade.pace.pace import WholeBudget


@dataclass(frozen=True, slots=True)
class TreePolicy:
    """How a tree grows. Chosen for the fewest steps with stories3M on the first 16 story prompts, 16 to 64 nodes.

    Attributes:
        child_prior: assumed probability of a node's likeliest child until the node is expanded. Below 1 it saves
            expansions; a child may then wait behind nodes that are down to this factor less likely.
        stage_floor: a stage's tokens are skipped below this fraction of the path probability that the last node of a
            recent tree had.
        token_floor: a token is skipped below this many times the stage's floor, all stages added up.
        least: path probability below which no token is drafted, however large the budget.
        window_share: a window starts with at most one part in this many of the budget.
        decay: weight of the past in the moving averages.
    """

    child_prior: float = 0.6
    stage_floor: float = 0.08
    token_floor: float = 3.0
    least: float = 1e-300
    window_share: int = 4
    decay: float = 0.95


TREE = TreePolicy()


@dataclass(slots=True)
class _State:
    mixture: Mixture
    window: Window | None
    ngrams: NgramPool | None  # of the window
    cut: float  # path probability of the last node within the budget, a moving average
    full: bool = False  # whether the last tree used its budget; if not, the next one skips no token
    window_accepted: float = 0.0  # accepted window tokens per step, a moving average
    read: int = 0  # tokens of the text that the mixture has taken in
    places: list[Place] = field(default_factory=list)  # of this step's nodes
    masses: list[float] = field(default_factory=list)  # path probabilities of this step's nodes, the window's left out
    root_children: dict[int, float] = field(default_factory=dict)  # before the cut: token -> probability


class BlendDrafter:
    """The scored tree.

    Args:
        settings: window, ngram, guesses, seed and sources are read.
        budget: nodes of a tree, the root included.
        warm: the model's predictions from before any text, where they are at hand.
        references: per row of the batch a text that its output may repeat, or `None`.
        pool: gives a request what drafting learned so far; a fresh one for each, unless pools outlive requests.
        pace: chooses how much of the budget every step takes (`lade.pace.pace.Pace`); `None`: all of it.
        policy: how trees grow.
    """

    def __init__(
        self,
        settings: Settings,
        budget: int,
        warm: Warm | None = None,
        references: Sequence[Sequence[int] | None] | None = None,
        pool: Callable[[], Pool] = fresh_pool,
        pace: WholeBudget | None = None,
        policy: TreePolicy = TREE,
    ) -> None:
        self.settings, self.budget, self.warm, self.references, self.pool = settings, budget, warm, references, pool
        self.pace, self.policy = pace or WholeBudget(budget), policy
        # With a warm table a window finds hardly anything new.
        windows = "window" in settings.sources and warm is None
        self.columns = min(settings.window, budget // policy.window_share // (settings.ngram - 1)) if windows else 0
        self._names = [stage.name for stage in stages()]
        self._drafts_now = True  # whether the current step drafts and learns

    def start(self, request: Request) -> None:
        settings, tokens, pool = self.settings, request.tokens, self.pool()
        reference = self.references[request.row] if self.references is not None else None
        ngrams = NgramPool(settings.ngram, settings.guesses) if self.columns else None
        start = Start(settings, tokens, request.prompt_length, pool.table, reference, ngrams, self.warm)
        prompt = tokens[: request.prompt_length]
        window = Window(prompt, self.columns, settings.ngram, settings.seed) if self.columns else None
        mixture = Mixture(pool, opened(start))
        request.state = _State(mixture, window, ngrams, cut=0.5 / self.budget, read=len(tokens))

    def draft(self, requests: Sequence[Request], depths: Sequence[int]) -> list[Draft]:
        context = max(len(request.tokens) for request in requests)
        room = self.pace.begin(context, len(requests))
        self._drafts_now = room > 1
        drafts = self._drafts(requests, depths, room, context) if self._drafts_now else roots(requests)
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
        """Drop the nodes of all rows that cost more than they are expected to save."""
        repeats = any(state.mixture.repeats for state in states)
        nodes = self.pace.choose([state.masses for state in states], context, repeats)
        for state, builder in zip(states, builders, strict=True):
            state.root_children = {
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
                share = self.policy.window_share - 1
                columns = min(columns, len(builder.tokens) // share // (state.window.ngram - 1))
            state.window.add(builder, columns)
        return builder

    def _columns(self, window: Window, deepest: int, budget: int) -> int:
        most = budget // self.policy.window_share // (window.ngram - 1)
        return min(window.width, deepest - window.ngram + 3, most)

    def _grow(self, builder: TreeBuilder, state: _State, deepest: int, budget: int) -> None:
        """Add the nodes that the model is likeliest to choose, until the budget is used."""
        mixture, places, depths, names = state.mixture, state.places, builder.depths, self._names
        policy = self.policy
        prior, floor = policy.child_prior, max(policy.least, policy.stage_floor * state.cut * state.full)
        least, last = -floor * policy.token_floor, 0.0
        # Two heaps by negative path probability: nodes whose children are not known yet, with an estimate of the
        # likeliest child's; tokens with their parent and stage.
        unexpanded: list[tuple[float, int]] = [(-prior, 0)] if deepest > 0 else []
        candidates: list[tuple[float, int, int, int]] = []
        while (candidates or unexpanded) and len(places) < budget:
            if unexpanded and (not candidates or unexpanded[0] < candidates[0]):
                estimate, node = heappop(unexpanded)
                path = estimate / prior
                masses, first = mixture.expect(places[node], depths[node], -floor / path)
                for token, mass in masses.items():
                    negative = path * mass
                    if negative <= least:
                        heappush(candidates, (negative, node, token, first[token]))
                continue
            last, node, token, stage = heappop(candidates)
            state.masses.append(-last)
            builder.append(node, token, names[stage])
            places.append(mixture.follow(places[node], token))
            if depths[-1] < deepest:
                heappush(unexpanded, (last * prior, len(depths) - 1))
        state.full = len(places) == budget
        state.cut = policy.decay * state.cut - (1 - policy.decay) * (last if state.full else 0.0)

    def observe(
        self,
        requests: Sequence[Request],
        drafts: Sequence[Draft],
        verdicts: Sequence[Verdict],
        predictions: Predictions,
    ) -> None:
        self.pace.verified()
        if self._drafts_now:  # else the step must take no longer than one of plain decoding
            for slot, (request, draft, verdict) in enumerate(zip(requests, drafts, verdicts, strict=True)):
                if verdict.tokens:
                    self._learn(request.state, slot, draft, verdict, predictions)

    def end(self) -> Mapping[str, int]:
        return self.pace.end()

    def _learn(self, state: _State, slot: int, draft: Draft, verdict: Verdict, predictions: Predictions) -> None:
        with state.mixture.pool.lock:
            self._update(state, slot, draft, verdict, predictions)
        self.pace.learn(sum(state.root_children.values()), state.root_children.get(verdict.tokens[0], 0.0))
        self._move_window(state, slot, draft, verdict, predictions)

    def _update(self, state: _State, slot: int, draft: Draft, verdict: Verdict, predictions: Predictions) -> None:
        """Update the weights, and learn the model's predictions after every computed node, the accepted path last."""
        mixture, places = state.mixture, state.places
        for node in range(len(places), len(draft)):
            places.append(mixture.follow(places[draft.parents[node]], draft.tokens[node]))
        for node, choice in zip(verdict.path, verdict.tokens, strict=True):
            mixture.weigh(places[node], draft.depths[node], choice)
        # With rare draft attempts, one prediction teaches little and takes most of an attempt's time.
        if not mixture.learns or (len(draft) == 1 and self.pace.fruitless):
            return
        path = set(verdict.path)
        nodes = [*(node for node in draft.queries if node not in path), *verdict.path]
        mixture.learn([(places[node][0], predictions.top(slot, node)) for node in nodes])

    def _move_window(self, state: _State, slot: int, draft: Draft, verdict: Verdict, predictions: Predictions) -> None:
        """Pool the window's n-grams, shift it, and drop a column if its nodes are accepted less often than others."""
        window, ngrams, decay = state.window, state.ngrams, self.policy.decay
        if window is None or ngrams is None:
            return
        new = [predictions.greedy(slot, node) for node in window.outputs if node < len(draft)]
        if not new:
            return
        for gram in window.grams(draft.tokens[0], new):
            ngrams.add(gram)
        accepted = sum(draft.sources[node] == "window" for node in verdict.path)
        state.window_accepted = decay * state.window_accepted + (1 - decay) * accepted
        width = window.width - (state.window_accepted < window.nodes(window.width) * state.cut * (1 - decay))
        window.shift(new, 1, width)
        if width < 1:
            state.window = None
