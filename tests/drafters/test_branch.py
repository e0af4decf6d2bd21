"""The forwards of a draft model for trees of several requests."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lade.core.tree import TreeBuilder
from lade.drafters.branch import Branch, expand
from lade.target.pieces import Piece

SIZES = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 5), st.integers(0, 9)).filter(lambda size: size[0] + size[1]),
    min_size=1,
    max_size=4,
)


def branch_of(computed: int, new: int, root: int) -> Branch:
    """A chain of nodes, the first ones computed."""
    builder = TreeBuilder(1)
    builder.add_path(0, list(range(2, computed + new + 1)), "draft")
    return Branch(builder, min(root, computed + new - 1), deepest=99, computed=computed)


class Rows:
    """A target that notes the pieces that it computes; the logits say which row and node they belong to."""

    vocabulary = 99

    def __init__(self, packed: bool) -> None:
        self.packed = packed
        self.pieces: dict[int, Piece] = {}

    def compute(self, slots: Sequence[int], pieces: Sequence[Piece]) -> tuple[torch.Tensor, list[Mapping[int, int]]]:
        self.pieces = dict(zip(slots, pieces, strict=True))
        names = [[slot, node] for slot, piece in self.pieces.items() for node in piece.queries]
        lines: list[dict[int, int]] = [{} for _ in slots]
        for line, (slot, node) in enumerate(names):
            lines[list(slots).index(slot)][node] = line
        return torch.tensor(names), lines


@settings(max_examples=300)
@given(SIZES, st.booleans())
def test_the_newest_nodes_are_computed(sizes: list[tuple[int, int, int]], packed: bool) -> None:
    """Padded rows are as long as the longest one, of nodes that they have: models that cut tensors by the number of
    nodes crash otherwise, though every tree has room."""
    rows = [branch_of(*size) for size in sizes]
    going = [slot for slot, (_, new, _) in enumerate(sizes) if new]
    if not going:
        return
    target: Any = Rows(packed)
    logits = expand(target, range(len(rows)), rows, [rows[slot] for slot in going])
    assert logits.tolist() == [[slot, node] for slot in going for node in rows[slot].frontier]
    assert sorted(target.pieces) == (going if packed else list(range(len(rows))))
    longest = max(new for _, new, _ in sizes)
    for slot, piece in target.pieces.items():
        computed, new, _ = sizes[slot]
        assert piece.columns == computed + new
        assert piece.first == (computed if packed else max(0, computed + new - longest))
