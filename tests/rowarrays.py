"""The arrays of a request's drafting memory for tests, and the functions on them, called as Python."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from lade.base.compiled import viewed
from lade.config.settings import LookaheadConfig
from lade.memory import automaton, evidence, mixture, places
from lade.memory.backoff import Backoff, backoff
from lade.memory.context import CONTEXT, NOTHING
from lade.memory.corpora import NO_CORPUS
from lade.memory.evidence import FIRST_STAGES, FOUND, FOUND_MASSES, SCRATCH_FLOATS, SCRATCH_INTS
from lade.memory.hashing import Array
from lade.memory.pools import Pool, fresh_pool
from lade.memory.predictions import TOP, forget, learn_prediction
from lade.memory.row import FIRST, LAST, NODES, OWN, USES, WIDTH, Row, write_token
from lade.memory.rowmemory import RowMemory
from lade.memory.stages import BUCKETS, NAMES
from lade.memory.table import PredictionTable
from lade.memory.warmtable import WarmContexts, WarmTable

Entry = tuple[Sequence[int], Sequence[float]]  # tokens and their probabilities, likeliest first


def memory_of(
    text: Sequence[int] = (),
    *,
    prompt: int | None = None,
    reference: Sequence[int] = (),
    warm: Backoff | None = None,
    grams: Sequence[Sequence[int]] = (),
    pool: Pool | None = None,
    corpus: Array = NO_CORPUS,
    only: Iterable[str] = NAMES,
) -> RowMemory:
    """A request whose text is a prompt of so many tokens, or of all, then output; `only` these stages predict."""
    settings, length = LookaheadConfig().settled(), len(text) if prompt is None else prompt
    parts = warm, reference, TOP if grams else 0, None, corpus
    memory = RowMemory(settings, text, length, pool or fresh_pool(), *parts)
    memory.add_grams(grams)
    ints, names = memory.row().ints, set(only)
    for stage, name in enumerate(NAMES):
        ints[USES + stage] *= name in names
    return memory


def warm_of(*entries: Entry) -> Backoff:
    """Entry t is predicted after token t; the last one also after all further tokens below ten."""
    entries = (*entries, *[entries[-1]] * (10 - len(entries)))
    width = max(len(tokens) for tokens, _ in entries)
    tokens = torch.tensor([[*known, *range(90, 90 + width - len(known))] for known, _ in entries], dtype=torch.int32)
    masses = torch.tensor([[*each, *[0.0] * (width - len(each))] for _, each in entries])
    none = WarmContexts(torch.zeros(0, CONTEXT, dtype=torch.int32), tokens[:0], masses[:0])
    return backoff(WarmTable(tokens, masses, none, 0.0), 1.0)


def halves(memory: RowMemory) -> RowMemory:
    """The same with weights of one half."""
    memory.pool.calibration.numbers[:BUCKETS] = 0.5
    return memory


def row_of(memory: RowMemory) -> Row:
    row: Row = viewed(memory.row())
    return row


def write(memory: RowMemory, tokens: Iterable[int]) -> None:
    """Append output."""
    for token in tokens:
        memory.reserve_text(int(memory.row().ints[OWN + automaton.TOKENS]) + 1)
        write_token(row_of(memory), token)


def scratch() -> tuple[list[int], list[float]]:
    return [0] * SCRATCH_INTS, [0.0] * SCRATCH_FLOATS


def place(memory: RowMemory, path: Sequence[int] = ()) -> int:
    """Make the root and a path under it nodes of the tree. Returns the last one."""
    row = row_of(memory)
    places.root(row)
    for parent, token in enumerate(path):
        places.follow(row, parent + 1, parent, token)
    return len(path)


def nodes_of(memory: RowMemory, number: int) -> np.ndarray:
    """[number, WIDTH] the first nodes of the tree; a view."""
    ints = memory.row().ints
    return ints[int(ints[NODES]) :][: number * WIDTH].reshape(number, WIDTH)


def context_of(memory: RowMemory, node: int) -> tuple[int, ...]:
    return tuple(nodes_of(memory, node + 1)[node, FIRST : LAST + 1].tolist())


def expected(memory: RowMemory, node: int, floor: float = 0.0) -> tuple[dict[int, float], dict[int, int]]:
    """What may follow a node: token -> probability, token -> the first stage that predicts it."""
    tokens, masses = scratch()
    number = mixture.expect(row_of(memory), node, floor, tokens, masses)
    found = tokens[FOUND : FOUND + number]
    assert len(set(found)) == number
    probabilities = masses[FOUND_MASSES : FOUND_MASSES + number]
    return dict(zip(found, probabilities, strict=True)), dict(zip(found, tokens[FIRST_STAGES:], strict=False))


def predicted(memory: RowMemory, stage: int, node: int = 0) -> tuple[int, list[int], list[float]]:
    """What one stage predicts after a node: its bucket, tokens, their probabilities."""
    tokens, masses = scratch()
    row = row_of(memory)
    at = row.ints[NODES] + node * WIDTH
    evidence.look_up(row, at, tokens)
    number, bucket = evidence.predicted(row, at, stage, tokens, masses)
    return bucket, tokens[:number], masses[:number]


def predicted_after(memory: RowMemory, stage: int, *context: int) -> tuple[int, list[int], list[float]]:
    """The same after a context."""
    nodes_of(memory, 1)[0, FIRST : LAST + 1] = padded(context)
    return predicted(memory, stage)


def padded(context: Sequence[int]) -> tuple[int, ...]:
    return (*[NOTHING] * (CONTEXT - len(context)), *context)


def learn(table: PredictionTable, context: Sequence[int], entry: Entry) -> None:
    """Teach a table what the model predicted after a context."""
    table.reserve(CONTEXT)
    tokens, probabilities = entry
    arrays: Any = viewed(table.ints), viewed(table.masses)
    learn_prediction(*arrays, *padded(context), tokens, probabilities, 0, len(tokens))


def end_step(table: PredictionTable) -> None:
    """What follows the last prediction of a step."""
    forget(viewed(table.ints), viewed(table.masses), table.capacity)
