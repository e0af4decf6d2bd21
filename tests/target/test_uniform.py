"""One call of attention for several rows: what each row alone would attend to."""

from itertools import accumulate, pairwise
from typing import Any

import torch
from families import BY_NAME
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import tiny_model
from torch.nn.functional import scaled_dot_product_attention
from untried import untried

import lade
from lade.target.masks import RowMask
from lade.target.uniform import RowKeys, uniform

LOWEST = torch.tensor(torch.finfo(torch.float64).min, dtype=torch.float64)
SIZE, CAPACITY = 4, 12
SEES_ALL = RowMask.of(None)


@st.composite
def slabs(draw: st.DrawFn) -> list[tuple[int, int, int, int]]:
    """Of each row: its slab, where its keys begin and end there, its nodes."""
    rows = []
    for place in draw(st.lists(st.integers(0, 5), min_size=2, max_size=4, unique=True)):
        nodes = draw(st.integers(1, 3))
        end = draw(st.integers(nodes, CAPACITY))
        rows.append((place, draw(st.integers(0, end - nodes)), end, nodes))
    return rows


@settings(max_examples=200)
@given(slabs(), st.sampled_from([(1, 1), (2, 1), (2, 3)]), st.booleans(), st.integers(0, 99))
def test_each_row_as_if_alone(
    drawn: list[tuple[int, int, int, int]], heads: tuple[int, int], hides: bool, seed: int
) -> None:
    places, begins, ends, nodes = zip(*drawn, strict=True)
    shared, group = heads
    noise = torch.Generator().manual_seed(seed)
    flat = torch.randn(2, 1, shared, 7 * CAPACITY, SIZE, dtype=torch.float64, generator=noise)
    key, value = flat[0], flat[1][..., : SIZE - 1]  # values may be narrower than keys
    query = torch.randn(1, group * shared, sum(nodes), SIZE, dtype=torch.float64, generator=noise)
    rows = []
    for place, begin, end, count in drawn:
        offset, mask = 5 + place * CAPACITY, None
        if hides:
            seen = torch.rand(count, end - begin, generator=noise) < 0.7
            seen[:, -1] = True
            mask = torch.where(seen, 0.0, LOWEST)
        rows.append(RowKeys(offset, CAPACITY, offset + begin, offset + end, RowMask.of(mask)))
    together = uniform(rows, nodes, LOWEST)
    looked_at = max(ends) * (max(places) - min(places) + 1)
    few_padded = sum(nodes) >= max(nodes) * len(nodes) / 2
    assert (together is not None) == (few_padded and sum(ends) - sum(begins) >= looked_at / 2)
    if together is None:
        return
    found = together.attend(query, key[:, :, : together.end], value[:, :, : together.end], 0.0, 0.4)
    assert found.shape[1] == sum(nodes)
    for (first, last), row in zip(pairwise([0, *accumulate(nodes)]), rows, strict=True):
        own = scaled_dot_product_attention(
            query[:, :, first:last],
            key[:, :, row.begin : row.end],
            value[:, :, row.begin : row.end],
            row.mask.whole(),
            scale=0.4,
            enable_gqa=True,
        )
        assert torch.allclose(found[:, first:last], own.transpose(1, 2), atol=1e-12, rtol=0)


def test_rows_that_no_stride_reaches_or_that_need_much_padding_are_left_alone() -> None:
    rows = [RowKeys(0, 8, 0, 8, SEES_ALL), RowKeys(8, 8, 8, 16, SEES_ALL)]
    assert uniform(rows, [1, 1], LOWEST) is not None
    assert uniform(rows[:1], [1], LOWEST) is None
    assert uniform(rows * 2, [1, 1, 1, 4], LOWEST) is None
    assert uniform([rows[0], RowKeys(8, 9, 8, 16, SEES_ALL)], [1, 1], LOWEST) is None
    assert uniform([rows[0], RowKeys(9, 8, 9, 17, SEES_ALL)], [1, 1], LOWEST) is None


@untried()
def test_rows_of_an_engine_whose_prompts_are_unlike_are_taken_together() -> None:
    """Unless another way is faster, which is not tried here."""
    model = tiny_model(BY_NAME["llama"], "sdpa")
    with lade.Engine(model, slots=3) as engine:
        for length in (3, 20, 41):
            ids = torch.arange(length)[None] % 20 + 3
            kwargs: dict[str, Any] = {"attention_mask": torch.ones_like(ids), "do_sample": False, "eos_token_id": None}
            engine.submit(ids, drafts=False, max_new_tokens=4 + length, **kwargs)
        engine.step()
        if engine._target.fused is not None:
            engine._target.fused.one_call = False
        engine._target.clock.attention.clear()
        engine.step()
        assert engine._target.clock.attention == {"together": 1}
