"""What drafters under test draft from and learn from: warm tables and recycled predictions by hand, and a model's."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from lade.core.tree import Draft
from lade.memory.backoff import Backoff, backoff
from lade.memory.context import CONTEXT, NOTHING, SHORT
from lade.memory.pools import Pool
from lade.memory.predictions import LEARNED, TOKENS, TOP, WIDTH
from lade.memory.warmtable import WarmContexts, WarmTable

EVERY = (1 << 31) - 1  # of a request that no other one comes after
Entry = tuple[Sequence[int], Sequence[float]]  # tokens, their probabilities, likeliest first
Ending = tuple[int, ...]


def warm_of(alone: Sequence[Entry | None], endings: Mapping[Ending, Entry] | None = None) -> Backoff:
    """A warm table. All entries have the same number of tokens.

    Args:
        alone: by token; `None`: nothing is known.
    """
    endings = endings or {}
    (width,) = {len(entry[0]) for entry in [*alone, *endings.values()] if entry} or {1}
    nothing: Entry = [0] * width, [0.0] * width
    padded = [[NOTHING] * (CONTEXT - len(ending)) + [*ending] for ending in endings]
    tables = [
        (
            torch.tensor([tokens for tokens, _ in entries], dtype=torch.int32).reshape(-1, width),
            torch.tensor([probabilities for _, probabilities in entries], dtype=torch.float32).reshape(-1, width),
        )
        for entries in ([entry or nothing for entry in alone], [*endings.values()])
    ]
    contexts = WarmContexts(torch.tensor(padded, dtype=torch.int32).reshape(-1, CONTEXT), *tables[1])
    return backoff(WarmTable(*tables[0], contexts, seconds=0.0), sharpness=1.0)


def remember(pool: Pool, entries: Mapping[Ending, Entry]) -> None:
    """Replace a pool's predictions, by some that every request takes for its own."""
    rows, masses = np.full((len(entries), WIDTH), -1, np.int32), np.zeros((len(entries), TOP), np.float32)
    for row, (ending, (tokens, probabilities)) in enumerate(entries.items()):
        rows[row, :CONTEXT] = [SHORT] * (CONTEXT - len(ending)) + [*ending]
        rows[row, CONTEXT:TOKENS] = 1, 0, EVERY
        rows[row, TOKENS : TOKENS + len(tokens)], masses[row, : len(tokens)] = tokens, probabilities
    pool.table.replace([(rows, masses)])


def remembered(pool: Pool, length: int) -> dict[Ending, Entry]:
    """A pool's predictions after contexts of a length, the oldest first."""
    found = {}
    for row, masses in zip(*(part.tolist() for part in pool.table.rows(length)), strict=True):
        tokens = [token for token in row[TOKENS:] if token >= 0]
        found[tuple(row[CONTEXT - length : CONTEXT])] = tokens, masses[: len(tokens)]
    return found


def learned(pool: Pool, length: int) -> dict[Ending, int]:
    """The number of the pool's newest request when a context of a length was learned."""
    rows, _ = pool.table.rows(length)
    return {tuple(row[CONTEXT - length : CONTEXT]): row[LEARNED] for row in rows.tolist()}


def path_of(draft: Draft, node: int) -> tuple[int, ...]:
    return () if node == 0 else (*path_of(draft, draft.parents[node]), draft.tokens[node])


class Says:
    """A model's predictions at the nodes of drafts.

    Args:
        after: what it predicts after a text.
    """

    def __init__(
        self, after: Callable[[Sequence[int]], Entry], drafts: Sequence[Draft], texts: Sequence[Sequence[int]]
    ) -> None:
        entries, self.lines = [], []
        for draft, text in zip(drafts, texts, strict=True):
            self.lines.append({node: len(entries) + place for place, node in enumerate(draft.queries)})
            entries += [after([*text, *path_of(draft, node)]) for node in draft.queries]
        tokens, probabilities = zip(*entries, strict=True)
        self.top = np.array(tokens, np.int32), np.array(probabilities, np.float32)

    def likeliest(self) -> tuple[np.ndarray, np.ndarray]:
        return self.top

    def lines_of(self, slot: int, nodes: Sequence[int]) -> list[int]:
        return [self.lines[slot][node] for node in nodes]

    def greedy(self, slot: int, node: int) -> int:
        return int(self.top[0][self.lines[slot][node], 0])
