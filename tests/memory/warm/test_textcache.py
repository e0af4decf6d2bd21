"""The KV cache of texts: what was stored comes back, from buffers that are little larger."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from lade.memory.warm.textcache import BLOCK, TextLayer

ROWS, HEADS = 3, 2


@given(
    steps=st.lists(st.integers(1, 2 * BLOCK), min_size=1, max_size=6),
    rows=st.integers(1, ROWS),
    capacity=st.integers(1, 6 * BLOCK),
    cut=st.integers(0, BLOCK),
)
def test_all_tokens_of_a_row_in_buffers_a_block_larger(steps: list[int], rows: int, capacity: int, cut: int) -> None:
    noise = torch.Generator().manual_seed(0)
    layer, before = TextLayer(ROWS, capacity), [torch.empty(rows, HEADS, 0, size) for size in (4, 6)]
    for number, tokens in enumerate(steps):
        if number == len(steps) - 1:
            layer.length = min(layer.length, cut)
            before = [states[:, :, :cut] for states in before]
        new = [torch.randn(rows, HEADS, tokens, size, generator=noise) for size in (4, 6)]
        before = [torch.cat(parts, dim=2) for parts in zip(before, new, strict=True)]
        most = max(layer.length + tokens, 0 if layer.keys is None else layer.keys.shape[2])
        found = layer.update(*new)
        assert all(map(torch.equal, found, before))
        assert layer.keys.shape[2] == layer.values.shape[2] < most + BLOCK
        assert layer.keys.shape[2] <= max(capacity, most)
        assert torch.isfinite(layer.keys).all()
        assert torch.isfinite(layer.values).all()


def test_rows_share_the_first_ones_tokens() -> None:
    noise = torch.Generator().manual_seed(0)
    layer = TextLayer(ROWS, 2 * BLOCK)
    head = layer.update(*(torch.randn(1, HEADS, 5, 4, generator=noise) for _ in range(2)))
    layer.share()
    new = [torch.randn(ROWS, HEADS, BLOCK, 4, generator=noise) for _ in range(2)]
    for found, first, last in zip(layer.update(*new), head, new, strict=True):
        assert torch.equal(found, torch.cat([first.expand(ROWS, -1, -1, -1), last], dim=2))
