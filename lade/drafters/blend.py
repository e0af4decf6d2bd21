"""Every source of drafts in one draft tree: best first by path probability, under the step's token budget.

Rows may join and leave between steps: what belongs to one is in its request's state. A Jacobi window takes part of a
row's budget as long as its n-grams are accepted often enough. Knows tokens and trees, no model; of the sources only the
window by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from lade.config.settings import Settings
from lade.core.drafter import Predictions, roots
from lade.core.request import Request, Verdict
from lade.core.tree import Draft, TreeBuilder
from lade.drafters.forced import with_forced
from lade.drafters.growth import GrowingTree, Growth
from lade.drafters.window import Window
from lade.memory.mixture import Mixture, Place
from lade.memory.ngrams import NgramPool
from lade.memory.pools import Pool, fresh_pool
from lade.memory.source import Start, Warm
from lade.memory.sources import opened, stages
from lade.pace.belief import Belief
from lade.pace.pace import WholeBudget
from lade.pace.sharing import Row


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
    belief: Belief  # that path probabilities hold in this text
    cut: float  # path probability of the last node within the budget, a moving average
    full: bool = False  # whether the last tree used its budget; if not, the next one skips no token
    window_accepted: float = 0.0  # accepted window tokens per step, a moving average
    read: int = 0  # tokens of the text that the mixture has taken in
    places: list[Place] = field(default_factory=list)  # of this step's nodes
    root_children: dict[int, float] = field(default_factory=dict)  # before the cut: token -> probability


class BlendDrafter:
    """The scored tree.

    Args:
        settings: window, ngram, guesses, seed and sources are read.
        budget: nodes of a tree, the root included.
        warm: gives the model's predictions from before any text, at an inverse temperature; `None`: there are none.
        pool: gives a request of a tenant, or of none, what drafting learned so far.
        pace: chooses how much of the budget every step takes (`lade.pace.pace.Pace`); `None`: all of it.
        policy: how trees grow.
        warm_table: which table `warm` reads, for the statistics.
    """

    def __init__(
        self,
        settings: Settings,
        budget: int,
        warm: Callable[[float], Warm] | None = None,
        pool: Callable[[str | None], Pool] = lambda tenant: fresh_pool(),
        pace: WholeBudget | None = None,
        policy: TreePolicy = TREE,
        warm_table: str | None = None,
    ) -> None:
        self.settings, self.budget, self.warm, self.pool = settings, budget, warm, pool
        self.warm_table = warm_table
        self.pace, self.policy = pace or WholeBudget(budget), policy
        windows = "window" in settings.sources
        self.columns = min(settings.window, budget // policy.window_share // (settings.ngram - 1)) if windows else 0
        self._names = [stage.name for stage in stages()]
        self._drafts_now = True  # whether the current step drafts and learns

    def start(self, request: Request) -> None:
        settings, tokens, pool = self.settings, request.tokens, self.pool(request.tenant)
        warm = None if self.warm is None else self.warm(request.inverse_temperature)
        ngrams = NgramPool(settings.ngram, settings.guesses) if self.columns else None
        start = Start(settings, tokens, request.prompt_length, pool.table, request.reference, ngrams, warm)
        sources, window = opened(start), None
        if any(source.suffices for source in sources):
            sources, ngrams = [source for source in sources if source.setting != "window"], None
        if ngrams is not None:
            window = Window(tokens[: request.prompt_length], self.columns, settings.ngram, settings.seed)
        mixture = Mixture(pool, sources)
        belief = self.pace.belief()
        request.state = _State(mixture, window, ngrams, belief, cut=0.5 / self.budget, read=len(tokens))

    def draft(self, requests: Sequence[Request], depths: Sequence[int]) -> list[Draft]:
        contexts = [len(request.tokens) for request in requests]
        room = self.pace.begin(contexts, [request.state.belief for request in requests])
        self._drafts_now = room > len(requests)
        drafts = self._drafts(requests, depths, room) if self._drafts_now else roots(requests)
        drafts = [with_forced(*each) for each in zip(requests, drafts, depths, strict=True)]
        self.pace.carry([len(draft) for draft in drafts])
        return drafts

    def _drafts(self, requests: Sequence[Request], depths: Sequence[int], room: int) -> list[Draft]:
        trees = [self._tree(request, depth) for request, depth in zip(requests, depths, strict=True)]
        for group, nodes in self.pace.sharing.groups(trees, room):
            Growth(group, self._names, self.policy.child_prior).run(nodes)
        self._cut([request.state for request in requests], trees)
        parts = zip(requests, trees, strict=True)
        return [self._windowed(request, tree.builder, tree.deepest).build() for request, tree in parts]

    def _tree(self, request: Request, deepest: int) -> GrowingTree:
        """The root of a row's next tree."""
        state, policy = request.state, self.policy
        state.mixture.extend(request.tokens[state.read :])
        state.read = len(request.tokens)
        budget = min(self.budget, request.max_nodes)
        window = 0 if state.window is None else state.window.nodes(self._columns(state.window, deepest, budget))
        floor = max(policy.least, policy.stage_floor * state.cut * state.full)
        return GrowingTree(
            TreeBuilder(request.tokens[-1]),
            state.mixture,
            [state.mixture.place(request.tokens)],
            deepest,
            most=budget - window,
            floor=floor,
            least=floor * policy.token_floor,
            weight=state.belief.holds,
        )

    def _cut(self, states: Sequence[_State], trees: Sequence[GrowingTree]) -> None:
        """Drop the nodes that cost more than they are expected to save."""
        decay = self.policy.decay
        rows = [Row(tree.masses, state.belief, tree.mixture.repeats) for state, tree in zip(states, trees, strict=True)]
        for state, tree, nodes in zip(states, trees, self.pace.choose(rows), strict=True):
            state.full, state.cut = tree.limited, decay * state.cut + (1 - decay) * tree.cut
            state.root_children = {
                token: mass
                for token, mass, depth in zip(tree.builder.tokens, tree.masses, tree.builder.depths, strict=True)
                if depth == 1
            }
            tree.builder.cut(nodes)
            state.places = tree.places[:nodes]

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

    def pause(self) -> None:
        self.pace.pause()

    def stop(self, request: Request) -> None:
        request.state = None

    def end(self) -> Mapping[str, int]:
        return self.pace.end()

    def _learn(self, state: _State, slot: int, draft: Draft, verdict: Verdict, predictions: Predictions) -> None:
        with state.mixture.pool.lock:
            self._update(state, slot, draft, verdict, predictions)
        children = state.root_children
        self.pace.learn(state.belief, sum(children.values()), children.get(verdict.tokens[0], 0.0))
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
