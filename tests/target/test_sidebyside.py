"""Attention of one token of each text: that of its definition, under any mask."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from lade.target.sidebyside import SideBySide, first_of

LOWEST = torch.finfo(torch.float64).min


def expected(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    group = query.shape[1] // key.shape[1]
    repeated = (states.repeat_interleave(group, 1) for states in (key, value))
    return scaled_dot_product_attention(query, *repeated, scores, scale=0.3).transpose(1, 2)


@given(
    noise=st.integers(0, 1 << 30),
    rows=st.integers(1, 3),
    heads=st.sampled_from([(1, 1), (2, 2), (4, 2), (3, 1)]),
    keys=st.integers(1, 6),
    sizes=st.sampled_from([(4, 4), (6, 2)]),
    mask=st.sampled_from(["none", "bool", "added"]),
    biased=st.booleans(),
    buffered=st.booleans(),
)
def test_it_is_attention(
    noise: int,
    rows: int,
    heads: tuple[int, int],
    keys: int,
    sizes: tuple[int, int],
    mask: str,
    biased: bool,
    buffered: bool,
) -> None:
    generator = torch.Generator().manual_seed(noise)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    part = first_of if buffered else lambda states, tokens: states[:, :, :tokens]
    query, key, value = (
        random(rows, heads[0], 1, sizes[0]),
        *(part(random(rows, heads[1], 9, size), keys) for size in sizes),
    )
    seen = random(rows, 1, 1, keys) > 0
    seen[..., 0] = True
    hidden = torch.zeros(rows, 1, 1, keys, dtype=torch.float64).masked_fill(~seen, LOWEST)
    given_mask = {"none": None, "bool": seen, "added": hidden}[mask]
    bias = random(1, heads[0], 1, keys) if biased else None
    scores = (torch.zeros_like(hidden) if mask == "none" else hidden) + (0 if bias is None else bias)
    before = [states.clone() for states in (query, key, value)]
    found, weights = SideBySide().attend(query, key, value, given_mask, scaling=0.3, position_bias=bias)
    torch.testing.assert_close(found, expected(query, key, value, scores))
    assert weights is None
    assert found.is_contiguous()
    assert all(map(torch.equal, before, (query, key, value)))


@pytest.mark.parametrize("rule", [{"softcap": 2.0}, {"s_aux": torch.tensor([0.5, -1.0, 2.0, 0.0])}])
def test_soft_caps_and_sinks(rule: dict[str, Any]) -> None:
    noise = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, n, t, 4, generator=noise) for n, t in ((4, 1), (2, 5), (2, 5)))
    scores = (query.unflatten(1, (2, 2)) @ key.unsqueeze(2).transpose(3, 4))[:, :, :, 0] * 0.5  # [R, H, G, K]
    if "softcap" in rule:
        scores = 2 * (scores / 2).tanh()
        weights = scores.softmax(3)
    else:
        sinks = rule["s_aux"].view(1, 2, 2, 1).expand(2, -1, -1, -1)
        weights = torch.cat([scores, sinks], 3).softmax(3)[..., :-1]
    found, _ = SideBySide().attend(query, key, value, None, **rule)
    torch.testing.assert_close(found, (weights @ value).flatten(1, 2).unsqueeze(1))
