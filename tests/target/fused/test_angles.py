"""Angles of positions are those that transformers' module computes, to the bit, whatever was asked before."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import own_llama

from lade.base.bits import DTYPES, bits_of
from lade.target.fused import angles
from lade.target.fused.angles import FIRST, MOST, Angles

POSITIONS = st.lists(st.integers(-2, MOST + 5) | st.integers(0, FIRST + 5), min_size=1, max_size=6)


def expected(rotary: Any, positions: list[int], dtype: torch.dtype) -> list[list[int]]:
    """The first halves of what the module returns, whose second halves are equal."""
    found = rotary(torch.zeros(1, dtype=dtype), torch.tensor([positions]))
    return [bits_of(each[0].chunk(2, dim=-1)[0].contiguous()).tolist() for each in found]


def found(given: Angles, positions: list[int]) -> list[list[int]]:
    return [each.tolist() for each in given.of(np.array(positions))]


@pytest.mark.parametrize("dtype", DTYPES)
@torch.no_grad()
def test_angles_are_those_of_the_module(dtype: torch.dtype) -> None:
    rotary = own_llama().model.rotary_emb
    kept = Angles(rotary, dtype)

    @given(POSITIONS)
    def check(positions: list[int]) -> None:
        assert found(kept, positions) == expected(rotary, positions, dtype)

    check()


@torch.no_grad()
def test_no_more_positions_are_kept_than_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(angles, "FIRST", 4)
    kept = Angles(own_llama().model.rotary_emb, torch.float32)
    for position, length in ((3, 4), (4, 8), (0, 8), (MOST, 8), (-1, 8), (20, 32)):
        kept.of(np.array([position]))
        assert kept._kept.shape[1] == length


@torch.no_grad()
def test_what_is_kept_follows_the_module() -> None:
    rotary = own_llama().model.rotary_emb
    own = SimpleNamespace(inv_freq=rotary.inv_freq.clone(), attention_scaling=1.0)
    kept, positions = Angles(own, torch.float32), [1, 7]
    before = found(kept, positions)
    own.inv_freq.mul_(0.5)
    assert found(kept, [2, 14]) == before
    own.inv_freq.data = rotary.inv_freq.clone()
    assert found(kept, positions) == before
    own.inv_freq.mul_(0.5)
    own.inv_freq = rotary.inv_freq
    assert found(kept, positions) == before
    own.attention_scaling = 2.0
    doubled = [(2 * torch.tensor(each).int().view(torch.float32)).numpy().view(np.uint32).tolist() for each in before]
    assert found(kept, positions) == doubled
