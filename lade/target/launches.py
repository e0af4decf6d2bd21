"""Rows of a packed forward as the kernels take them, sent with the forward's other integers. Knows no model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from lade.kernels.blocks import takes
from lade.kernels.launch import attend
from lade.kernels.rows import CHAIN, FIELDS, Row, Rows
from lade.target.masks import MaskKind, TreeMasks
from lade.target.pieces import Piece, ancestors
from lade.target.upload import Part, Upload
from lade.target.ways import Call


@dataclass(frozen=True, slots=True)
class Launch:
    """What the layers of one mask kind attend to in one launch.

    Attributes:
        kind: whose window or chunk holds.
        table, integers: `Rows`, once they are sent.
        most_nodes, most_keys: of a row.
    """

    kind: MaskKind
    table: Part
    integers: Part
    most_nodes: int
    most_keys: int

    def rows(self) -> Rows:
        table = self.table.there.view(-1, FIELDS)
        return Rows(table, self.integers.there, self.most_nodes, self.most_keys)


def launches(
    upload: Upload, masks: TreeMasks, slots: Sequence[int], pieces: Sequence[Piece]
) -> Mapping[MaskKind, Launch]:
    """Add the rows of a prepared forward to an upload; nothing where padding stands between tokens."""
    if any(slot in masks.real for slot in slots):
        return {}
    trees: list[int] = []
    places = []
    for piece in pieces:
        places.append(CHAIN if piece.is_chain else len(trees))
        if not piece.is_chain:
            trees += [*piece.depths, *ancestors([piece])[piece.first :].ravel().tolist()]
    integers = upload.add(trees or [0])
    return {kind: _launch(upload, masks, kind, slots, pieces, places, integers) for kind in masks.each_kind}


def _launch(
    upload: Upload,
    masks: TreeMasks,
    kind: MaskKind,
    slots: Sequence[int],
    pieces: Sequence[Piece],
    places: Sequence[int],
    integers: Part,
) -> Launch:
    group, nodes = masks.group(kind), [len(piece.tokens) for piece in pieces]
    firsts = accumulate(nodes, initial=0)
    rows = [
        Row(
            first,
            len(piece.tokens),
            group.slabs.offsets[slot],
            group.held(slot),
            group.starts[slot] - masks.first[slot],
            piece.columns,
            place,
        )
        for slot, piece, first, place in zip(slots, pieces, firsts, places, strict=False)
    ]
    table = upload.add([number for row in rows for number in row.fields()])
    return Launch(kind, table, integers, max(nodes), max(row.held + row.columns for row in rows))


class Kernel:
    """The way of one launch for all rows."""

    name = "kernel"

    def fits(self, call: Call) -> bool:
        launch, query, value = call.kind.launch, call.query, call.value
        return launch is not None and not call.dropout and takes(query.dtype, query.shape[3], value.shape[3])

    def attend(self, call: Call) -> torch.Tensor:
        launch = call.kind.launch
        assert launch is not None
        rules = call.rules(launch.kind.window, launch.kind.chunk)
        return attend(call.query[0], call.key[0], call.value[0], launch.rows(), rules)[None]
