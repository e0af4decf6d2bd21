"""Attention by its definition: that of PyTorch, and that of eager models with soft caps and sinks."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward as with_soft_cap
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward as with_sinks

from lade.kernels.rows import Rules
from lade.target.definition import dense

SEEN = torch.ones(5, 9, dtype=torch.bool).tril(4).expand(2, 1, 5, 9)
ADDED = torch.zeros(2, 1, 5, 9, dtype=torch.float64).masked_fill(~SEEN, -torch.inf)


@pytest.fixture
def states() -> list[torch.Tensor]:
    """2 rows, 4 heads of queries for 2 of keys and values, 5 queries and 9 keys."""
    generator = torch.Generator().manual_seed(0)
    shapes = (2, 4, 5, 16), (2, 2, 9, 16), (2, 2, 9, 16)
    return [torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes]


def module(**parameters: torch.Tensor) -> Any:
    return SimpleNamespace(num_key_value_groups=2, training=False, **parameters)


@pytest.mark.parametrize("mask", [SEEN, ADDED, ADDED.expand(2, 4, 5, 9), None], ids=["bool", "added", "heads", "none"])
def test_it_is_pytorchs(states: list[torch.Tensor], mask: torch.Tensor | None) -> None:
    expected = scaled_dot_product_attention(*states, mask, scale=0.25, enable_gqa=True).transpose(1, 2)
    torch.testing.assert_close(dense(*states, mask, Rules(0.25)), expected)


def test_soft_caps_are_those_of_eager_models(states: list[torch.Tensor]) -> None:
    expected = with_soft_cap(module(), *states, ADDED, scaling=0.25, softcap=0.5)[0]
    found = dense(*states, ADDED, Rules(0.25, cap=0.5))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)  # eager models round weights to float32
    assert (found - dense(*states, ADDED, Rules(0.25))).abs().max() > 0.1


def test_sinks_are_those_of_eager_models(states: list[torch.Tensor]) -> None:
    sinks = torch.tensor([-1.0, 0.0, 1.0, 2.0], dtype=torch.float64)  # no two heads alike
    expected = with_sinks(module(sinks=sinks), *states, ADDED, scaling=0.25)[0]
    torch.testing.assert_close(dense(*states, ADDED, Rules(0.25, sinks=sinks)), expected)
