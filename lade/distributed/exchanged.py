"""What all ranks learn of a forward: each sends what it found after its own nodes, in one exchange per step.

Takes the place of `lade.target.outputs.Outputs`. The exchange happens when the host first reads anything: by then the
emission has chosen after this rank's own nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

import numpy as np
import torch

from lade.distributed.cut import Node, Share
from lade.distributed.record import Layout, Record
from lade.target.outputs import Outputs

Exchange = Callable[[Record, int], Sequence[Record]]  # a rank's own record and entries per node -> those of all ranks


class ExchangedOutputs(Outputs):
    """The outputs of a forward that several ranks computed.

    Args:
        logits: [M, V] of this rank's nodes.
        lines: their lines, per row of the step.
        shares: of all ranks.
        exchange: sends this rank's record and returns those of all, once they are compared.
    """

    def __init__(
        self,
        logits: torch.Tensor,
        lines: Sequence[Mapping[int, int]],
        vocabulary: int,
        shares: Sequence[Share],
        rank: int,
        layout: Layout,
        exchange: Exchange,
    ) -> None:
        super().__init__(logits, lines, vocabulary=vocabulary)
        self._shares, self._rank, self._layout, self._exchange = shares, rank, layout, exchange
        self._places: dict[Node, tuple[int, int]] = {}  # of each query: its rank, and its line in that rank's record
        self._records: Sequence[Record] = ()

    def choice(self, row: int, node: int) -> int:
        record, line = self._at(row, node)
        return record.choices[line]

    def greedy(self, row: int, node: int) -> int:
        record, line = self._at(row, node)
        return record.greedy[line]

    def likeliest(self) -> tuple[np.ndarray, np.ndarray]:
        """Of all ranks' lines behind one another."""
        self._read_all()
        tokens = [line for record in self._records for line in record.tokens]
        probabilities = [line for record in self._records for line in record.probabilities]
        shape = len(tokens), len(tokens[0]) if tokens else 0
        return np.array(tokens, np.int32).reshape(shape), np.array(probabilities, np.float32).reshape(shape)

    def lines_of(self, row: int, nodes: Sequence[int]) -> list[int]:
        self._read_all()
        firsts = list(accumulate((len(record.tokens) for record in self._records), initial=0))
        places = [self._places[row, node] for node in nodes]
        return [firsts[rank] + line for rank, line in places]

    def nan_rows(self, rows: Sequence[int]) -> list[int]:
        """Those of the rows whose logits contain NaN on any rank."""
        self._read_all()
        return [row for row in rows if any(record.flags[row] for record in self._records)]

    def _at(self, row: int, node: int) -> tuple[Record, int]:
        self._read_all()
        rank, line = self._places[row, node]
        return self._records[rank], line

    def _read_all(self) -> None:
        if self._records:
            return
        for rank, share in enumerate(self._shares):
            self._places.update((query, (rank, line)) for line, query in enumerate(share.queries))
        entries = self._layout.entries(max(len(share.queries) for share in self._shares))
        self._records = self._exchange(self._own(entries), entries)

    def _own(self, entries: int) -> Record:
        """What this rank has found."""
        queries = self._shares[self._rank].queries
        if not queries:
            return Record(0, [False] * len(self.lines), (), (), (), (), ())
        ahead = bool(self._chosen)
        greedy = [super(ExchangedOutputs, self).greedy(*query) for query in queries]
        choices = [super(ExchangedOutputs, self).choice(*query) for query in queries] if ahead else greedy
        if not entries:
            return Record(0, self._nan(), (), choices, greedy, [], [])
        lines = [self.lines[row][node] for row, node in queries]
        tokens, probabilities = super().likeliest()
        return Record(0, self._nan(), (), choices, greedy, tokens[lines].tolist(), probabilities[lines].tolist())

    def _nan(self) -> list[bool]:
        """Per row whether its logits contain NaN: one among its keys and values makes all of them NaN."""
        found = self.logits.amax(-1).isnan().tolist() if self._on_host else self._read.nan
        assert found is not None
        return [any(found[line] for line in lines.values()) for lines in self.lines]
