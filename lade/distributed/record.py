"""What a rank sends in the one exchange of a step, as int32 of a fixed number: `pack` and `unpack` of one layout.

    [checksum, queries, flags of rows, times of rank 0, (choice, [greedy], k entries) of each query]

An entry holds a token in its lowest bits and its probability, a float16 without its lowest bits, in the others: all
ranks, the sender included, go on with what was sent. M queries of a rank. Knows no process and no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

TIMES = 3  # float32 numbers
ROWS = 32  # per word of flags
HALF = 15  # bits of a float16 from 0 to 1
LEAST = 2048  # integers: 8 kB


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of one call.

    Attributes:
        rows: of the batch.
        vocabulary: ids of tokens are below it.
        top: predictions after a node, at most.
        apart: whether choices may be others than the likeliest tokens.
        total: integers of a record.
    """

    rows: int
    vocabulary: int
    top: int
    apart: bool
    total: int

    @classmethod
    def of(cls, rows: int, nodes: int, vocabulary: int, top: int, apart: bool) -> Layout:
        """That of a call whose trees have at most `nodes` nodes each; 8 kB at most, if the choices find room there."""
        head = _head(rows)
        wanted = head + rows * nodes * (1 + apart + top)
        return cls(rows, vocabulary, top, apart, max(min(wanted, LEAST), head + rows * nodes * (1 + apart)))

    def entries(self, queries: int) -> int:
        """Predictions per node where a rank has this many queries: as many as find room."""
        room = (self.total - _head(self.rows)) // max(1, queries) - 1 - self.apart
        return max(0, min(self.top, room))

    @property
    def token_bits(self) -> int:
        return max(1, (self.vocabulary - 1).bit_length())


@dataclass(slots=True)
class Record:
    """The record of one rank.

    Attributes:
        checksum: of texts and trees, 32 bits.
        flags: per row.
        times: in seconds.
        choices: [M]; -1 where there is no distribution.
        greedy: [M] the likeliest tokens.
        tokens, probabilities: [M, k] likeliest first.
    """

    checksum: int
    flags: Sequence[bool]
    times: Sequence[float]
    choices: Sequence[int]
    greedy: Sequence[int]
    tokens: Sequence[Sequence[int]]
    probabilities: Sequence[Sequence[float]]


def pack(record: Record, layout: Layout, entries: int) -> torch.Tensor:
    """[total] int32.

    Args:
        entries: predictions per node, k.
    """
    buffer = np.zeros(layout.total, dtype=np.uint32)
    words = _words(layout.rows)
    buffer[0], buffer[1] = record.checksum, len(record.choices)
    for row, flag in enumerate(record.flags):
        buffer[2 + row // ROWS] |= np.uint32(flag << row % ROWS)
    times = np.zeros(TIMES, dtype=np.float32)
    times[: len(record.times)] = record.times
    buffer[2 + words : 2 + words + TIMES] = times.view(np.uint32)
    if len(record.choices):
        chosen = (record.choices, record.greedy) if layout.apart else (record.choices,)
        columns = [np.asarray(each, dtype=np.int32).view(np.uint32)[:, None] for each in chosen]
        if entries:
            columns.append(_entries(record, layout, entries))
        table = np.concatenate(columns, axis=1).ravel()
        buffer[_head(layout.rows) : _head(layout.rows) + len(table)] = table
    return torch.from_numpy(buffer.view(np.int32))


def unpack(buffer: torch.Tensor, layout: Layout, entries: int) -> Record:
    """The record that `pack` was given, with probabilities as they were sent."""
    numbers = buffer.numpy().view(np.uint32)
    words, head = _words(layout.rows), _head(layout.rows)
    checksum, queries = int(numbers[0]), int(numbers[1])
    flags = [bool(numbers[2 + row // ROWS] >> np.uint32(row % ROWS) & 1) for row in range(layout.rows)]
    times = numbers[2 + words : head].view(np.float32).tolist()
    width = 1 + layout.apart + entries
    table = numbers[head : head + queries * width].reshape(queries, width)
    tokens, probabilities = _of_entries(table[:, 1 + layout.apart :], layout)
    chosen = table.view(np.int32)
    choices, greedy = chosen[:, 0].tolist(), chosen[:, int(layout.apart)].tolist()
    return Record(checksum, flags, times, choices, greedy, tokens.tolist(), probabilities.tolist())


def _entries(record: Record, layout: Layout, entries: int) -> np.ndarray:
    """[M, k] uint32"""
    bits = layout.token_bits
    tokens = np.asarray(record.tokens, dtype=np.uint32)[:, :entries]
    halves = np.asarray(record.probabilities, dtype=np.float16)[:, :entries].view(np.uint16).astype(np.uint32)
    return tokens | np.maximum(halves >> _dropped(layout), 1) << bits


def _of_entries(entries: np.ndarray, layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    """[M, k] tokens and probabilities."""
    bits = layout.token_bits
    halves = (entries >> bits << _dropped(layout)).astype(np.uint16)
    return entries & (1 << bits) - 1, halves.view(np.float16).astype(np.float64)


def _dropped(layout: Layout) -> int:
    return max(0, HALF - (32 - layout.token_bits))


def _words(rows: int) -> int:
    return -(-rows // ROWS)


def _head(rows: int) -> int:
    return 2 + _words(rows) + TIMES
