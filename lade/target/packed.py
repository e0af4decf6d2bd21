"""A forward of rows behind one another, [1, T] without padding: linear layers see all nodes, attention each row alone.

T nodes of all rows, M queried nodes, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import torch

from lade.kernels import available
from lade.target.attention import packed
from lade.target.masks import Mask, MaskKind, RowMask, TreeMasks
from lade.target.pieces import Piece
from lade.target.rowattention import PackedForward, PackedKind, RootForward, stand_in
from lade.target.store import LayerGroup
from lade.target.transfer import Transferred, transfer
from lade.target.uniform import RowKeys, Uniform, uniform
from lade.target.upload import Upload

if TYPE_CHECKING:
    from lade.target.model import HFTarget

ROOT = ("single",)  # the way of attention of a step without drafts
Lines = Sequence[Mapping[int, int]]


class PackedRows:
    """Computes pieces of trees behind one another."""

    def __init__(self, target: HFTarget) -> None:
        self.target = target

    def compute(self, slots: Sequence[int], pieces: Sequence[Piece]) -> tuple[torch.Tensor, Lines]:
        """[M, V] logits of the queries, and per row the line of each node in them."""
        if self._is_root(slots, pieces):
            return self._root(slots[0], pieces[0].tokens), [{0: 0}]
        found = [self._forward(slots[part], pieces[part]) for part in self._parts(pieces)]
        lines: list[Mapping[int, int]] = []
        first = 0
        for _, queries in found:
            for nodes in queries:
                lines.append(dict(zip(nodes, range(first, first + len(nodes)), strict=True)))
                first += len(nodes)
        return found[0][0] if len(found) == 1 else torch.cat([logits for logits, _ in found]), lines

    def _is_root(self, slots: Sequence[int], pieces: Sequence[Piece]) -> bool:
        """Whether this is one node that needs no mask: a step without drafts, of one row."""
        if len(pieces) != 1 or len(pieces[0].parents) != 1 or self.target.follows_index:
            return False
        return slots[0] not in self.target.masks.real and bool(pieces[0].queries)

    def _root(self, slot: int, tokens: Sequence[int]) -> torch.Tensor:
        """[1, V] logits after one node, at a fraction of the host's work for a tree."""
        target, masks, cache = self.target, self.target.masks, self.target.cache
        cache.prepare([slot], [1], [0])
        upload = Upload()
        sent = upload.add((*tokens, target.positions[slot]))
        cache.send(upload)
        upload.send(target.device)
        cache.settle()
        cache.indexed = None
        ids, positions = sent.there.view(2, 1, 1).unbind()
        kinds = []
        for kind in masks.each_kind:
            group = masks.group(kind)
            kinds.append((group.slabs.offsets[slot] + masks.lowest_key(kind, slot), group.kv_length))
        logits = self._logits(RootForward(kinds), ids, positions, None)
        target.clock.attended(ROOT)
        return logits[0]

    def _logits(
        self,
        forward: PackedForward | RootForward,
        ids: torch.Tensor,
        positions: torch.Tensor,
        asked: torch.Tensor | None,
    ) -> torch.Tensor:
        """[1, M, V]; arguments as of `FusedDecoder.logits`."""
        target = self.target
        if target.fused is not None and target.fused.fits(target.undisturbed):
            return target.fused.logits(forward, ids, positions, asked)
        with packed(forward, target.implementation):
            return target.logits(ids, positions, self._stand_ins(ids.shape[1]), asked)

    def _stand_ins(self, nodes: int) -> Mask | dict[str, Mask]:
        masks = self.target.masks
        found: dict[str, Mask] = {
            kind.name: stand_in(index, nodes, masks.zero.dtype, self.target.device)
            for index, kind in enumerate(masks.each_kind)
        }
        return masks.as_taken(found)

    def _parts(self, pieces: Sequence[Piece]) -> Iterator[slice]:
        """All rows; fewer at a time for models that index tables of positions by the number of tokens of a forward."""
        limit, first, nodes = self.target.position_limit, 0, 0
        for row, piece in enumerate(pieces):
            nodes += len(piece.tokens)
            if limit is not None and nodes > limit and row > first:
                yield slice(first, row)
                first, nodes = row, len(piece.tokens)
        yield slice(first, len(pieces))

    def _forward(self, slots: Sequence[int], pieces: Sequence[Piece]) -> tuple[torch.Tensor, list[Sequence[int]]]:
        target = self.target
        spans = list(pairwise([0, *accumulate(len(piece.tokens) for piece in pieces)]))
        count = sum(len(piece.queries) for piece in pieces)
        asked: Sequence[int] = (_asked(spans, pieces) or [0]) if count < spans[-1][1] else ()
        target.cache.prepare(slots, [piece.columns for piece in pieces], [piece.first for piece in pieces])
        indexed = self._indexed(slots, pieces) if target.follows_index else []
        roots = [target.positions[slot] for slot in slots]
        sent = transfer(target.cache, slots, roots, pieces, asked, indexed, target.device, self._launched())
        target.cache.indexed = sent.indexed
        kinds = target.masks.each_kind
        forward = PackedForward(spans, self._attended(kinds, sent), target.ways)
        logits = self._logits(forward, sent.ids.unsqueeze(0), sent.positions.unsqueeze(0), sent.asked)
        target.clock.attended(forward.used)
        return logits[0, :count], [piece.queries for piece in pieces]

    def _launched(self) -> TreeMasks | None:
        """The masks, where the kernels run."""
        return self.target.masks if available.runs(self.target.device) else None

    def _indexed(self, slots: Sequence[int], pieces: Sequence[Piece]) -> list[int]:
        lengths = self.target.cache.lengths
        indices = [
            lengths[slot] + depth for slot, piece in zip(slots, pieces, strict=True) for depth in piece.own_depths
        ]
        return [index - node for node, index in enumerate(indices)]

    def _attended(self, kinds: Sequence[MaskKind], sent: Transferred) -> list[PackedKind]:
        """What layers of each kind attend to. Kinds that see alike share a row's mask."""
        masks, sights = self.target.masks, sent.sights
        nodes = [len(sight.visible) for sight in sights]
        found: list[tuple[LayerGroup, list[RowKeys], Uniform | None]] = []
        shared: dict[tuple[object, ...], RowMask] = {}
        for kind in kinds:
            group, rows = masks.group(kind), []
            for sight in sights:
                lowest = masks.lowest_key(kind, sight.slot)
                offset = group.slabs.offsets[sight.slot]
                end = offset + group.held(sight.slot) + sight.visible.shape[1]
                alike = (sight.slot, group.starts[sight.slot] + lowest, masks.limits(kind, sight, lowest))
                if alike not in shared:
                    shared[alike] = masks.row(kind, sight, lowest)
                capacity = group.slabs.capacities[sight.slot]
                rows.append(RowKeys(offset, capacity, offset + lowest, end, shared[alike]))
            together = uniform(rows, nodes, masks.lowest) if self.target.device.type == "cpu" else None
            if together is not None:
                group.kv_length = max(group.kv_length, together.end)
            found.append((group, rows, together))
        return [  # once all kinds of a group have said how far they reach
            PackedKind(
                group.kv_length,
                [(row.begin, row.end) for row in rows],
                [row.mask for row in rows],
                nodes,
                together,
                sent.launches.get(kind),
            )
            for kind, (group, rows, together) in zip(kinds, found, strict=True)
        ]


def _asked(spans: Sequence[tuple[int, int]], pieces: Sequence[Piece]) -> list[int]:
    """The queries of all rows among the nodes of all rows."""
    return [
        begin + node - piece.first for (begin, _), piece in zip(spans, pieces, strict=True) for node in piece.queries
    ]
