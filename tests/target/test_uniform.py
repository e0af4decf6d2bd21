"""One call of attention for rows with equal trees: what each row alone would attend to."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from lade.target.uniform import RowKeys, uniform

LOWEST = torch.tensor(torch.finfo(torch.float64).min, dtype=torch.float64)
SIZE, CAPACITY = 4, 12


@st.composite
def slabs(draw: st.DrawFn) -> tuple[list[int], list[tuple[int, int]], int]:
    """Which slab each row has, its keys there, and the nodes of each row."""
    places = draw(st.lists(st.integers(0, 5), min_size=2, max_size=4, unique=True))
    nodes = draw(st.integers(1, 3))
    ends = [draw(st.integers(nodes, CAPACITY)) for _ in places]
    return places, [(draw(st.integers(0, end - nodes)), end) for end in ends], nodes


@settings(max_examples=200)
@given(slabs(), st.sampled_from([(1, 1), (2, 1), (2, 3)]), st.booleans(), st.integers(0, 99))
def test_each_row_as_if_alone(
    drawn: tuple[list[int], list[tuple[int, int]], int], heads: tuple[int, int], hides: bool, seed: int
) -> None:
    places, spans, nodes = drawn
    shared, group = heads
    noise = torch.Generator().manual_seed(seed)
    flat = torch.randn(2, 1, shared, 7 * CAPACITY, SIZE, dtype=torch.float64, generator=noise)
    key, value = flat[0], flat[1][..., : SIZE - 1]  # values may be narrower than keys
    query = torch.randn(1, group * shared, len(places) * nodes, SIZE, dtype=torch.float64, generator=noise)
    rows = []
    for place, (begin, end) in zip(places, spans, strict=True):
        offset, mask = 5 + place * CAPACITY, None
        if hides:
            seen = torch.rand(nodes, end - begin, generator=noise) < 0.7
            seen[:, -1] = True
            mask = torch.where(seen, 0.0, LOWEST)
        rows.append(RowKeys(offset, CAPACITY, offset + begin, offset + end, mask))
    together = uniform(rows, [nodes] * len(rows), LOWEST)
    used = sum(end - begin for begin, end in spans)
    looked_at = max(end for _, end in spans) * (max(places) - min(places) + 1)
    assert (together is not None) == (used >= looked_at / 2)
    if together is None:
        return
    found = together.attend(query, key[:, :, : together.end], value[:, :, : together.end], 0.0, 0.4)
    for index, row in enumerate(rows):
        own = scaled_dot_product_attention(
            query[:, :, index * nodes : (index + 1) * nodes],
            key[:, :, row.begin : row.end],
            value[:, :, row.begin : row.end],
            row.mask,
            scale=0.4,
            enable_gqa=True,
        )
        assert torch.allclose(found[:, index * nodes : (index + 1) * nodes], own.transpose(1, 2), atol=1e-12, rtol=0)


def test_unequal_rows_are_left_alone() -> None:
    rows = [RowKeys(0, 8, 0, 8, None), RowKeys(8, 8, 8, 16, None)]
    assert uniform(rows, [1, 1], LOWEST) is not None
    assert uniform(rows[:1], [1], LOWEST) is None
    assert uniform(rows, [1, 2], LOWEST) is None
    assert uniform([rows[0], RowKeys(8, 9, 8, 16, None)], [1, 1], LOWEST) is None
    assert uniform([rows[0], RowKeys(9, 8, 9, 17, None)], [1, 1], LOWEST) is None
