"""Every source of drafts in one draft tree: best first by path probability, under the step's token budget.

Rows may join and leave between steps: what belongs to one is in its request's state. A Jacobi window takes part of a
row's budget as long as its n-grams are accepted often enough. Knows tokens and trees, no model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import filterfalse
from math import inf

from lade.config.settings import Settings
from lade.core.drafter import Predictions, roots
from lade.core.request import Request, Verdict
from lade.core.tree import Draft, TreeBuilder
from lade.drafters.forced import with_forced
from lade.drafters.window import Window
from lade.drafters.workspace import Grown, Learned, TreePlan, Workspace
from lade.memory.backoff import Backoff
from lade.memory.corpora import NO_CORPUS
from lade.memory.hashing import Array
from lade.memory.pools import Pool, fresh_pool
from lade.memory.predictions import TOP
from lade.memory.rowmemory import RowMemory
from lade.memory.stages import NAMES
from lade.pace.belief import Belief
from lade.pace.lag import weights
from lade.pace.pace import WholeBudget
from lade.pace.sharing import Row


@dataclass(frozen=True, slots=True)
class TreePolicy:
    """How a tree grows. Chosen for the fewest steps with stories3M on the first 16 story prompts, 16 to 64 nodes.

    Attributes:
        child_prior: assumed probability of a node's likeliest child until the node is expanded. Below 1 it saves
            expansions; a child may then wait behind nodes that are down to this factor less likely.
        sure: path probability from which a node is drafted beyond the nodes that the pace asks for. With it, and
            `MatchPolicy.beginning` at 32, a right prediction took 32 tokens per step with lade-code-8M, not 14 to 16,
            and its requests 2.2 times as fast as without, not 1.9 (`benchmarks/serving.py --only prediction`). Other
            texts of SmolLM2-135M and lade-code-8M were as fast with 0.3, 0.5, 0.7 and without.
        stage_floor: a stage's tokens are skipped below this fraction of the path probability that the last node of a
            recent tree had.
        token_floor: a token is skipped below this many times the stage's floor, all stages added up.
        least: path probability below which no token is drafted, however large the budget.
        window_share: a window starts with at most one part in this many of the budget.
        decay: weight of the past in the moving averages.
        chain_growth: nodes that are grown per node of a chain. No record says what data it was chosen on.
    """

    child_prior: float = 0.6
    sure: float = 0.5
    stage_floor: float = 0.08
    token_floor: float = 3.0
    least: float = 1e-300
    window_share: int = 4
    decay: float = 0.95
    chain_growth: int = 4


TREE = TreePolicy()


@dataclass(slots=True)
class _State:
    memory: RowMemory
    window: Window | None
    belief: Belief  # that path probabilities hold in this text
    cut: float  # path probability of the last node within the budget, a moving average
    full: bool = False  # whether the last tree used its budget; if not, the next one skips no token
    window_accepted: float = 0.0  # accepted window tokens per step, a moving average
    weight: float = 1.0  # what one of its tokens is worth in this step
    size: int = 1  # nodes of this step's tree
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
        chains: whether drafts are chains, for engines that verify no trees: of every tree the path of most expected
            accepted tokens. There must be no window.
        corpus: texts that outputs may repeat (`lade.memory.corpora`), of requests without one of their own.

    Attributes:
        looks: whether the current step drafts and learns.
    """

    reads_likeliest = True  # after every step that drafts

    def __init__(
        self,
        settings: Settings,
        budget: int,
        warm: Callable[[float], Backoff] | None = None,
        pool: Callable[[str | None], Pool] = lambda tenant: fresh_pool(),
        pace: WholeBudget | None = None,
        policy: TreePolicy = TREE,
        warm_table: str | None = None,
        chains: bool = False,
        corpus: Array = NO_CORPUS,
    ) -> None:
        self.settings, self.budget, self.warm, self.pool = settings, budget, warm, pool
        self.warm_table, self.chains, self.corpus = warm_table, chains, corpus
        self.pace, self.policy = pace or WholeBudget(budget), policy
        windows = "window" in settings.sources
        self.columns = min(settings.window, budget // policy.window_share // (settings.ngram - 1)) if windows else 0
        self._work = Workspace()
        self._growth = policy.chain_growth if chains else 1
        self.looks = True

    def start(self, request: Request) -> None:
        settings, tokens, pool = self.settings, request.tokens, self.pool(request.tenant)
        warm = None if self.warm is None else self.warm(request.inverse_temperature)
        prompt, reference = request.prompt_length, request.reference
        guesses = 0 if not self.columns else settings.guesses if settings.guesses >= 0 else TOP
        corpus = self.corpus if request.corpus is None else request.corpus
        memory = RowMemory(settings, tokens, prompt, pool, warm, reference, guesses, request.noise, corpus)
        window = None
        if self.columns and not memory.suffices:
            window = Window(request.known_text, self.columns, settings.ngram, settings.seed)
        request.state = _State(memory, window, self.pace.start(reference=bool(reference)), cut=0.5 / self.budget)

    def draft(self, requests: Sequence[Request], depths: Sequence[int]) -> list[Draft]:
        contexts = [len(request.tokens) for request in requests]
        room = self.pace.begin(contexts, [request.state.belief for request in requests])
        self.looks = room > len(requests)
        drafts = self._drafts(requests, depths, room) if self.looks else roots(requests)
        drafts = [with_forced(*each) for each in zip(requests, drafts, depths, strict=True)]
        self.pace.carry([len(draft) for draft in drafts])
        return drafts

    def follow(self, requests: Sequence[Request]) -> None:
        """As of `Follower`."""
        memories = [request.state.memory for request in requests]
        new = [memory.unread(request.tokens) for memory, request in zip(memories, requests, strict=True)]
        plans = [TreePlan(0, 1, 1.0, 1.0, 1.0)] * len(requests)
        self._work.grow(memories, new, plans, 1, together=False, sure=inf, prior=1.0)
        for request in requests:
            request.state.size, request.state.root_children = 1, {}

    def _drafts(self, requests: Sequence[Request], depths: Sequence[int], room: int) -> list[Draft]:
        states: list[_State] = [request.state for request in requests]
        memories = [state.memory for state in states]
        new = [state.memory.unread(request.tokens) for state, request in zip(states, requests, strict=True)]
        for state, weight in zip(states, _weights(requests), strict=True):
            state.weight = weight
        for memory, request, depth in zip(memories, requests, depths, strict=True):
            memory.coupling.advance(request.emitted, depth)
        plans = [self._plan(request, depth) for request, depth in zip(requests, depths, strict=True)]
        groups = self.pace.sharing.groups(plans, room)
        nodes, together = groups[0][1] * self._growth, len(groups) == 1
        sure = inf if self.chains else self.policy.sure
        trees = self._work.grow(memories, new, plans, nodes, together, sure, self.policy.child_prior, self.chains)
        sizes = self._sizes(states, trees)
        parts = zip(requests, trees, sizes, depths, strict=True)
        return [self._windowed(request, self._cut(request, tree, size), depth) for request, tree, size, depth in parts]

    def _plan(self, request: Request, deepest: int) -> TreePlan:
        """How a row's next tree grows."""
        state, policy = request.state, self.policy
        budget = min(self.budget, request.max_nodes)
        window = 0 if state.window is None else state.window.nodes(self._columns(state.window, deepest, budget))
        floor = max(policy.least, policy.stage_floor * state.cut * state.full)
        return TreePlan(
            deepest,
            (budget - window) * self._growth,
            floor,
            floor * policy.token_floor,
            state.belief.holds * state.weight,
        )

    def _sizes(self, states: Sequence[_State], trees: Sequence[Grown]) -> list[int]:
        """The nodes of each tree that are worth their cost."""
        pairs = zip(states, trees, strict=True)
        return self.pace.choose([Row(tree.masses, state.belief, tree.repeats, state.weight) for state, tree in pairs])

    def _cut(self, request: Request, tree: Grown, size: int) -> Draft:
        """The first nodes of a tree; the rest costs more than it is expected to save."""
        state, decay = request.state, self.policy.decay
        state.full, state.cut, state.size = tree.limited, decay * state.cut + (1 - decay) * tree.cut, size
        if self.pace.adapts:
            known = zip(tree.tokens, tree.masses, tree.depths, strict=True)
            state.root_children = {token: mass for token, mass, depth in known if depth == 1}
        sources = ["root", *map(NAMES.__getitem__, tree.stages[1:size])]
        return Draft(tree.tokens[:size], tree.parents[:size], tree.depths[:size], list(range(size)), sources)

    def _windowed(self, request: Request, draft: Draft, deepest: int) -> Draft:
        state: _State = request.state
        if state.window is None:
            return draft
        columns = self._columns(state.window, deepest, min(self.budget, request.max_nodes))
        if self.pace.adapts:  # in proportion to the tree
            share = self.policy.window_share - 1
            columns = min(columns, len(draft) // share // (state.window.ngram - 1))
        if columns < 1:
            state.window.outputs = []
            return draft
        builder = TreeBuilder.of(draft)
        state.window.add(builder, columns)
        return builder.build()

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
        if self.looks:  # else the step must take no longer than one of plain decoding
            self.learn(requests, drafts, verdicts, predictions)
        self.pace.ended()

    def learn(
        self,
        requests: Sequence[Request],
        drafts: Sequence[Draft],
        verdicts: Sequence[Verdict],
        predictions: Predictions,
    ) -> None:
        """Learn from verdicts and predictions; the step's time is not noted."""
        told = [slot for slot, verdict in enumerate(verdicts) if verdict.tokens]
        if not told:
            return
        rows = [self._learned(requests[slot].state, slot, drafts[slot], verdicts[slot], predictions) for slot in told]
        self._work.learn(rows, predictions)
        for slot in told:
            state, verdict = requests[slot].state, verdicts[slot]
            children = state.root_children
            self.pace.learn(state.belief, sum(children.values()), children.get(verdict.tokens[0], 0.0))
            self._move_window(state, slot, drafts[slot], verdict, predictions)

    def _learned(self, state: _State, slot: int, draft: Draft, verdict: Verdict, predictions: Predictions) -> Learned:
        """The predictions after every computed node are learned, the accepted path last.

        With rare draft attempts, one prediction teaches little and takes most of an attempt's time.
        """
        nodes = [*filterfalse(verdict.path.__contains__, draft.queries), *verdict.path]
        if len(draft) == 1 and self.pace.fruitless:
            nodes = []
        lines = predictions.lines_of(slot, nodes)
        return Learned(state.memory, nodes, lines, min(state.size, len(draft)), draft, verdict)

    def pause(self) -> None:
        self.pace.pause()

    def stop(self, request: Request) -> None:
        request.state = None

    def end(self) -> Mapping[str, int]:
        return self.pace.end()

    def _move_window(self, state: _State, slot: int, draft: Draft, verdict: Verdict, predictions: Predictions) -> None:
        """Pool the window's n-grams, shift it, and drop a column if its nodes are accepted less often than others."""
        window, decay = state.window, self.policy.decay
        if window is None:
            return
        new = [predictions.greedy(slot, node) for node in window.outputs if node < len(draft)]
        if not new:
            return
        state.memory.add_grams([*window.grams(draft.tokens[0], new)])
        accepted = sum(draft.sources[node] == "window" for node in verdict.path)
        state.window_accepted = decay * state.window_accepted + (1 - decay) * accepted
        width = window.width - (state.window_accepted < window.nodes(window.width) * state.cut * (1 - decay))
        window.shift(new, 1, width)
        if width < 1:
            state.window = None


def _weights(requests: Sequence[Request]) -> list[float]:
    """What one token is worth in each row."""
    if not all(request.awaited for request in requests):
        return [1.0] * len(requests)
    return weights([request.limit - request.emitted for request in requests])
