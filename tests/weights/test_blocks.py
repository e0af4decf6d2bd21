"""Packed weights that lie in blocks: read as they lie, they are the weights that were packed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from inblocks import own_blocks

from lade.weights import blocks, onednn
from lade.weights.blocks import (
    LINES,
    BlockWeight,
    blocks_of,
    can_lie_in_blocks,
    dense,
    is_packed,
    laid_in_blocks,
    lines_of,
)
from lade.weights.onednn import packed, packs

BFLOAT16 = torch.bfloat16

needs_packing = pytest.mark.skipif(not packs(BFLOAT16), reason="oneDNN packs no bfloat16 on this machine")


def weight_of(lines: int, size: int, dtype: torch.dtype = BFLOAT16) -> torch.Tensor:
    return torch.randn(lines, size, generator=torch.Generator().manual_seed(0)).to(dtype)


def in_blocks(weight: torch.Tensor) -> bool:
    return blocks_of(packed(weight)) is not None


@pytest.fixture(autouse=True)
def nothing_known() -> None:
    blocks._lies_in_blocks.cache_clear()


def test_lines_of_blocks() -> None:
    """Of a memory that is written by hand: the first two numbers of all lines, then the next two."""
    memory = np.zeros((2, 2, LINES, 2), np.uint16)  # of two blocks two pairs of numbers
    memory[1, 0, 3] = 7, 8
    memory[1, 1, 3] = 9, 0
    assert lines_of(memory.reshape(-1), LINES + 4, 3)[LINES + 3].tolist() == [7, 8, 9]
    assert lines_of(memory.reshape(-1), LINES + 4, 3).shape == (LINES + 4, 3)


@needs_packing
@settings(max_examples=20)
@given(st.integers(1, 3 * LINES), st.integers(1, 70))
def test_a_packed_weight_is_found_in_its_memory(lines: int, half: int) -> None:
    weight = weight_of(lines, 2 * half)
    kept = packed(weight)
    memory = blocks_of(kept)
    if memory is not None:  # oneDNN is free to choose
        numbers = weight.view(torch.int16).numpy().view(np.uint16)
        assert (lines_of(memory, lines, 2 * half) == numbers).all()


def own(weight: torch.Tensor) -> BlockWeight:
    """Laid in blocks by lade."""
    with own_blocks():
        found = laid_in_blocks(weight)
    assert isinstance(found, BlockWeight)
    return found


@settings(max_examples=20)
@given(st.integers(1, 3 * LINES), st.integers(1, 70), st.sampled_from([BFLOAT16, torch.float32]))
def test_a_weight_that_lade_lays_in_blocks(lines: int, half: int, dtype: torch.dtype) -> None:
    """Its numbers are those that `lines_of` finds; lines that fill the last block are 0."""
    weight = weight_of(lines, 2 * half)
    kept = own(weight)
    memory = blocks_of(kept)
    assert memory is not None
    assert (lines_of(memory, lines, 2 * half) == weight.view(torch.int16).numpy().view(np.uint16)).all()
    assert not lines_of(memory, memory.size // (2 * half), 2 * half)[lines:].any()
    assert torch.equal(dense(kept, dtype), weight.to(dtype))
    assert (kept.shape, kept.dtype, kept.device) == (weight.shape, weight.dtype, weight.device)


@needs_packing
def test_lade_lays_weights_as_onednn_does() -> None:
    weight = weight_of(LINES + 5, 8)
    theirs = laid_in_blocks(weight)
    if theirs is None:
        pytest.skip("oneDNN chooses another layout on this machine")
    assert not isinstance(theirs, BlockWeight)
    memories = [memory.reshape(2, -1) for each in (own(weight), theirs) if (memory := blocks_of(each)) is not None]
    assert len(memories) == 2
    size = memories[0].shape[1]  # oneDNN may fill lines up
    assert (memories[0] == memories[1][:, :size]).all()
    assert not memories[1][:, size:].any()


def test_a_plain_weight_shares_no_memory_with_blocks() -> None:
    """Whoever writes to one writes to no other; of lines of two numbers, both have the same order."""
    weight = weight_of(LINES, 2)
    kept = own(weight)
    dense(kept, BFLOAT16).zero_()
    before = weight.clone()
    weight.zero_()
    assert torch.equal(dense(kept, BFLOAT16), before)


def test_nothing_reads_a_weight_in_blocks_by_itself() -> None:
    """What its numbers would be is in another order: an error says how to get them."""
    kept = own(weight_of(5, 8))
    for read in (torch.Tensor.float, torch.Tensor.clone, lambda weight: weight + 1, lambda weight: weight[0]):
        with pytest.raises(RuntimeError, match=r"must be plain for .* \(lade.unpack_weights\), got a packed one"):
            read(kept)
    assert repr(kept) == "BlockWeight(shape=[5, 8])"


def test_a_detached_weight_has_the_same_memory() -> None:
    """Also where inference tensors are made: the weight is none."""
    kept = torch.nn.Parameter(own(weight_of(5, 8)), requires_grad=False)
    with torch.inference_mode():
        found = kept.detach()
    assert is_packed(kept)
    assert is_packed(found)
    assert blocks_of(found) is blocks_of(kept)


@pytest.mark.parametrize(
    ("packing", "slow", "expected"), [(True, False, True), (False, True, True), (False, False, False)]
)
def test_where_weights_can_lie_in_blocks(
    packing: bool, slow: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where oneDNN packs them, or torch is known to be slow; none that loops cannot read."""
    monkeypatch.setattr(blocks, "packs", lambda dtype: packing)
    monkeypatch.setattr(blocks, "slow_on_cpu", lambda dtype: slow)
    assert can_lie_in_blocks(weight_of(5, 8)) == expected
    assert not can_lie_in_blocks(weight_of(5, 7))
    assert not can_lie_in_blocks(weight_of(0, 8))


@needs_packing
def test_which_weights_lie_in_blocks() -> None:
    if not in_blocks(weight_of(LINES, 8)):
        pytest.skip("oneDNN chooses another layout on this machine")
    assert in_blocks(weight_of(5, 8))
    assert not in_blocks(weight_of(LINES, 9))
    assert not in_blocks(weight_of(LINES, 8, torch.float32))
    assert blocks_of(weight_of(LINES, 8)) is None


@needs_packing
@pytest.mark.parametrize("order", [lambda weight: weight.flip(0), lambda weight: weight.flip(1)])
def test_another_order_is_noticed(order: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the numbers, whatever a layout is called."""
    own = blocks.packed
    monkeypatch.setattr(blocks, "packed", lambda weight: own(order(weight)))  # type: ignore[operator]
    assert not in_blocks(weight_of(LINES, 8))


@needs_packing
@pytest.mark.parametrize("lines", [2 * LINES, 2 * LINES + 1, 5 * LINES - 1, 5 * LINES])
def test_a_long_weight_is_known_by_a_shorter_one(lines: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if not in_blocks(weight_of(LINES, 8)):
        pytest.skip("oneDNN chooses another layout on this machine")
    shapes, own = list[tuple[int, ...]](), blocks.packed
    monkeypatch.setattr(blocks, "packed", lambda weight: shapes.append(tuple(weight.shape)) or own(weight))
    monkeypatch.setattr(blocks, "MOST", 2 * LINES)
    assert in_blocks(weight_of(lines, 8))
    assert shapes == [(LINES + lines % LINES, 8)]


@needs_packing
@pytest.mark.parametrize("place", [0, 8, -1])
@pytest.mark.parametrize("lines", [LINES, 5 * LINES])
def test_another_layout_is_not_read(lines: int, place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A weight of the same shape that is packed now may get another layout."""
    own, calls = blocks.layout, list[bytes]()

    def other(weight: torch.Tensor) -> bytes:
        found = bytearray(own(weight))
        found[place] += bool(calls)
        calls.append(bytes(found))
        return calls[-1]

    monkeypatch.setattr(blocks, "MOST", 2 * LINES)
    monkeypatch.setattr(blocks, "layout", other)
    assert not in_blocks(weight_of(lines, 8))
    assert len(calls) == 2


@needs_packing
def test_a_release_of_torch_that_cannot_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn, "READING", (*onednn.READING, "no_such_operation"))
    assert not in_blocks(weight_of(LINES, 8))
