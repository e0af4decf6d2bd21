"""The arrays of one request, and their growth between steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from lade.base.compiled import Compiled
from lade.config.settings import FAMILIES, Settings
from lade.memory import automaton as automata
from lade.memory import coverage, followers, reference, row, stages
from lade.memory.backoff import NO_TABLE, Backoff
from lade.memory.context import CONTEXT, SHORT
from lade.memory.corpora import NO_CORPUS
from lade.memory.coupling import Coupling, Source
from lade.memory.hashing import Array
from lade.memory.pools import Pool
from lade.memory.regions import Regions, Table
from lade.memory.row import GRAMS, MASSES, NODES, OWN, REFERENCE, USES, Row
from lade.memory.stages import STAGES
from lade.memory.texttables import READ, TextTables

PER_TOKEN = 4  # contexts that a token of the text follows
TOKENS, LEAST_NODES = 64, 32  # room at first, behind the text
NUMBERS = 90  # that a token takes in all tables; with more, they are moved when they grow

READ_TEXT, ADD_FOLLOWER = Compiled(row.read_text), Compiled(followers.add_follower)


class RowMemory:
    """What one request drafts from.

    Args:
        settings: which sources predict.
        tokens: the text so far, prompt first.
        prompt_length: how many of them are the prompt.
        pool: of its tenant, or of the request alone.
        warm: the model's predictions from before any text.
        output: a text that the output may repeat.
        guesses: the most tokens that the n-grams of a Jacobi window predict after a context.
        noise: the sampling noise of an emitted token; `None` where nothing is sampled, or the noise is not at hand.
        corpus: texts that the output may repeat (`lade.memory.corpora`).

    Attributes:
        coupling: the noise of the next tokens.
    """

    def __init__(
        self,
        settings: Settings,
        tokens: Sequence[int],
        prompt_length: int,
        pool: Pool,
        warm: Backoff | None = None,
        output: Sequence[int] | None = None,
        guesses: int = 0,
        noise: Source | None = None,
        corpus: Array = NO_CORPUS,
    ) -> None:
        self.pool, self.warm, self._read = pool, NO_TABLE if warm is None else warm, len(tokens)
        self._corpus = corpus
        self._regions = regions = Regions(row.HEADER, NUMBERS * (min(len(tokens), row.COUNTED) + TOKENS))
        self._text, self._reference = TextTables(regions, OWN), TextTables(regions, REFERENCE)
        self._counts, self._grams = _FollowerTables(regions, row.COUNTS), _FollowerTables(regions, GRAMS)
        self.coupling = Coupling(regions, row.NOISE, noise)
        self._nodes = 0
        self._row: Row | None = None
        self._floats = np.zeros(MASSES)
        self._floats[row.COVER : row.COVER + 3] = coverage.COVERAGE.prior, coverage.COVERAGE.prior, 1.0
        present = {"reference": bool(output), "window": guesses, "warm": warm is not None}
        self._use(settings, present | {"corpus": corpus is not NO_CORPUS})
        self._begin_reference(output or ())
        with pool.lock:
            regions.ints[row.BEGUN] = pool.table.begin()
        self.reserve_text(max(len(tokens), 1))
        self.reserve_nodes(LEAST_NODES)
        READ_TEXT(self.row(), np.array(tokens, np.int32), prompt_length)

    def _use(self, settings: Settings, present: Mapping[str, int]) -> None:
        """All names of the setting, which is its default, allow every source, one that has no name there too."""
        allowed = set(settings.sources)
        every = allowed.issuperset(FAMILIES)
        for number, stage in enumerate(STAGES):
            self._regions.ints[USES + number] = present.get(stage.source, 1) * (every or stage.source in allowed)

    def _begin_reference(self, output: Sequence[int]) -> None:
        tokens, regions = np.array(output, np.int32), self._regions
        self._reference.reserve(len(tokens))
        regions.place(REFERENCE + reference.ORDER, len(tokens))
        ints = regions.ints
        begin = ints[REFERENCE + reference.ORDER]
        ints[begin : begin + len(tokens)] = np.argsort(tokens, kind="stable")
        ints[REFERENCE + reference.NEXT] = 0 if output else -1
        ints[REFERENCE + reference.BEGUN] = reference.MATCHING.beginning if output else 0
        READ(ints, REFERENCE, tokens)

    def row(self) -> Row:
        """The arrays, for one step: they may be others after `reserve_text` or a change of the pool."""
        known, table, ints = self._row, self.pool.table, self._regions.ints
        if known is None or not (
            known.ints is ints
            and known.floats is self._floats
            and known.pool is table.ints
            and known.pool_masses is table.masses
            and known.weights is self.pool.calibration.numbers
            and known.noise is self.coupling.ring
        ):
            arrays = table.ints, table.masses, self.pool.calibration.numbers
            known = self._row = Row(ints, self._floats, *arrays, *self.warm, self._corpus, self.coupling.ring)
        return known

    def reserve_text(self, tokens: int) -> None:
        """Make room for a text of so many tokens."""
        if tokens <= self._text.room:
            return
        ints = self._regions.ints
        read, counted = int(ints[OWN + automata.TOKENS]), int(ints[row.COUNTS + followers.FOLLOWER_NUMBER])
        self._text.reserve(tokens + TOKENS)
        uncounted = read or max(0, tokens - row.COUNTED)
        self._counts.reserve(counted + PER_TOKEN * (self._text.room - uncounted))

    def reserve_nodes(self, nodes: int) -> None:
        """Make room for a tree of so many nodes."""
        if nodes > self._nodes:
            self._regions.place(NODES, nodes * row.WIDTH, self._nodes * row.WIDTH)
            self._floats = np.concatenate([self._floats, np.zeros(nodes - self._nodes)])
            self._nodes = nodes

    def unread(self, tokens: Sequence[int]) -> Sequence[int]:
        """What the text has grown by since the last call; there is room for it afterwards."""
        new = tokens[self._read :]
        self.reserve_text(len(tokens))
        self._read = len(tokens)
        return new

    def add_grams(self, grams: Sequence[Sequence[int]]) -> None:
        """n-grams that the window found."""
        number = sum(len(gram) - 1 for gram in grams)
        self._grams.reserve(int(self._regions.ints[GRAMS + followers.FOLLOWER_NUMBER]) + number)
        ints, short = self._regions.ints, [SHORT] * CONTEXT
        for gram in grams:
            for length in range(1, min(len(gram), CONTEXT + 1)):
                context = [*short, *gram[:length]][-CONTEXT:]
                ADD_FOLLOWER(ints, GRAMS, *map(int, context), int(gram[length]), True)

    @property
    def suffices(self) -> bool:
        """Whether the warm table is believed in full, so that a window would find hardly anything new."""
        uses = self._regions.ints[USES + stages.WARM]
        return bool(uses and self._floats[row.COVER + coverage.SHARE] == 1)


class _FollowerTables:
    def __init__(self, regions: Regions, own: int) -> None:
        contexts = followers.CONTEXTS, followers.CONTEXT_NUMBER, followers.INDEX, followers.SLOTS
        rest = own + followers.FOLLOWERS, own + followers.FOLLOWER_NUMBER
        self._contexts = Table(regions, [own + field for field in contexts], followers.WIDTH)
        self._followers = Table(regions, rest, followers.FOLLOWER_WIDTH)

    def reserve(self, number: int) -> None:
        """Make room for so many contexts and followers in all."""
        self._contexts.reserve(number)
        self._followers.reserve(number)
