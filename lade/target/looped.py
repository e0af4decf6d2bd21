"""A way of attention on a CPU: machine code takes all rows of a layer (`lade.target.rowloops`).

T nodes of all rows, t of one; H heads of keys and values, each for G query heads; K keys of a row; D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lade.base.bits import DTYPES, bits_of
from lade.base.threads import FORK, counters, threads_for
from lade.kernels.rows import scale_of
from lade.target.masks import RowMask
from lade.target.queryloops import Heads
from lade.target.rowloops import ATTEND, scratch_for
from lade.target.ways import Call

MOST_NODES = 1 << 10  # of a row, for whose masks there is a byte per node and key
OPERATIONS_EACH = 4  # of a number of a query and one of a key: products and sums of scores and of values
LONGEST = 1 << 15  # keys of a row, of which machine code keeps the scores


@dataclass(frozen=True, slots=True)
class RowTable:
    """What the loop reads of the rows.

    Attributes:
        rows: [R, WIDTH] int64, flat.
        visible: uint8, of all rows.
        most: K of the longest row.
        work: sum of t * K.
    """

    rows: np.ndarray
    visible: np.ndarray
    most: int
    work: int

    @classmethod
    def of(cls, spans: Sequence[tuple[int, int]], masks: Sequence[RowMask], nodes: Sequence[int]) -> RowTable:
        """Arguments as of `PackedKind`."""
        rows, seen, first, node, work = list[int](), list[np.ndarray](), 0, 0, 0
        for (begin, end), mask, count in zip(spans, masks, nodes, strict=True):
            keys = end - begin
            if mask.hides:
                rows += node, count, begin, keys, mask.seen, mask.prefix, first
                seen.append(mask.visible().numpy().view(np.uint8).reshape(-1))
                first += seen[-1].size
            else:
                rows += node, count, begin, keys, 0, keys, first
            node, work = node + count, work + count * keys
        visible = np.concatenate(seen) if seen else np.zeros(0, np.uint8)
        return cls(np.array(rows, np.int64), visible, max(end - begin for begin, end in spans), work)

    @classmethod
    def whole(cls, begin: int, end: int) -> RowTable:
        """Of one node that sees all keys."""
        keys = end - begin
        return cls(np.array([0, 1, begin, keys, 0, keys, 0]), np.zeros(0, np.uint8), keys, keys)

    def attend(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, heads: Heads, scaling: float
    ) -> torch.Tensor:
        """[T * H * G * D] of a layer.

        Args:
            queries: as many, of each row [H, t * G, D].
            keys, values: flat, as `attend_rows` takes them.
        """
        threads = threads_for(OPERATIONS_EACH * self.work * heads.stored * heads.group * heads.size)
        out, scratch = torch.empty_like(queries), scratch_for(self.most, heads.size, threads)
        ATTEND(
            *(FORK, threads, counters()),
            *(bits_of(queries), bits_of(keys), bits_of(values), self.rows, self.visible, heads),
            *(np.float32(scaling), queries.dtype is torch.bfloat16, scratch, bits_of(out)),
        )
        return out


class Looped:
    """Machine code, for all rows at once."""

    name = "loop"

    def fits(self, call: Call) -> bool:
        """As of `Way`."""
        key, value, kind = call.key, call.value, call.kind
        if not (call.plain and ATTEND.ready and key.device.type == "cpu" and key.dtype in DTYPES) or call.dropout:
            return False
        if max(kind.nodes) > MOST_NODES or max(end - begin for begin, end in kind.spans) > LONGEST:
            return False
        return key.shape == value.shape and key.stride() == value.stride() and key.stride()[2:] == (key.shape[3], 1)

    def attend(self, call: Call) -> torch.Tensor:
        """As of `Way`."""
        key, rows = call.key, call.queries()
        queries = torch.cat([row.reshape(-1) for row in rows])
        heads = Heads(key.shape[1], call.group, key.shape[3], key.stride(1))
        found = call.kind.table.attend(
            queries, _flat(key), _flat(call.value), heads, scale_of(call.query, call.scaling)
        )
        return found.view(1, call.query.shape[2], -1, key.shape[3])


def _flat(states: torch.Tensor) -> torch.Tensor:
    """All numbers from the first to the last one of [1, H, K, D]."""
    _, heads, keys, size = states.shape
    return states.as_strided(((heads - 1) * states.stride(1) + keys * size,), (1,))
