"""The forwards of a draft model for trees of several requests."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lade.core.tree import TreeBuilder
from lade.drafters import branch as module
from lade.drafters.branch import Branch, expand

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


@settings(max_examples=300)
@given(SIZES)
def test_no_row_is_given_more_slots_than_the_largest_tree(sizes: list[tuple[int, int, int]]) -> None:
    """Models that cut tensors by the number of slots crash otherwise, though every tree has room."""
    rows = [branch_of(*size) for size in sizes]
    ends = [computed + new for computed, new, _ in sizes]
    going = [slot for slot, (_, new, _) in enumerate(sizes) if new]
    slots = []

    def grow(
        target: object, row_slots: object, trees: object, spans: list[tuple[int, int]], queries: list[int]
    ) -> torch.Tensor:
        """[n, queries, 2]: the logits say which row and node they belong to."""
        slots.append(max(first for first, _ in spans) + max(end - first for first, end in spans))
        assert [end for _, end in spans] == ends
        assert all(first <= row.computed for (first, _), row in zip(spans, rows, strict=True))
        names = [[[slot, first + query] for query in queries] for slot, (first, _) in enumerate(spans)]
        return torch.tensor(names)

    if not going:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "grow", grow)
        logits = expand(None, range(len(rows)), rows, [rows[slot] for slot in going])
    assert slots == [max(ends)]
    assert logits.tolist() == [[slot, node] for slot in going for node in rows[slot].frontier]
