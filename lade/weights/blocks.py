"""Packed bfloat16 weights that lie in blocks of lines, which loops can read as they lie.

A block holds `LINES` lines of a weight: of every line the first two numbers, then of every line the next two. Lines
that fill the last block, and numbers at the end of lines, are 0. oneDNN does not say which layout it chose; a weight
of known numbers that is packed into the same one tells. On processors for which oneDNN packs no bfloat16, as those of
x86 with AVX2, weights are laid in blocks here. Knows no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch.nn.functional import pad

from lade.facts.products import slow_on_cpu
from lade.weights.onednn import layout, memory, packed, packs, readable

LINES = 64  # of a block
TOGETHER = 2  # numbers of a line
PAIR = np.uint32  # of two numbers
WORD = 8  # bytes of an int64
NUMBERS = 0x7F00  # bits of bfloat16 below these are those of positive numbers, and none of NaN or infinity
MOST = 1024  # lines of a weight of known numbers; of a longer weight that is packed in the same way they stand for all


class BlockWeight(torch.Tensor):
    """A [N, K] bfloat16 weight of which there is nothing but its memory in blocks.

    It has the shape and the dtype of a weight, and no operation of torch's but `detach` takes it.

    Args:
        shape: N and K.
        blocks: flat uint16.
    """

    blocks: np.ndarray
    __torch_function__: Any = torch._C._disabled_torch_function_impl  # torch asks `__torch_dispatch__` alone

    @staticmethod
    def __new__(cls, shape: Sequence[int], blocks: np.ndarray) -> BlockWeight:
        found: Any = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch.bfloat16, device=torch.device("cpu"))
        found.blocks = blocks
        return found

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        if func is not torch.ops.aten.detach.default:
            raise RuntimeError(f"a weight must be plain for {func} (lade.unpack_weights), got a packed one")
        with torch.inference_mode(False):  # as the weight is, wherever it is detached
            return cls(args[0].shape, args[0].blocks)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"{type(self).__name__}(shape={[*self.shape]})"


def can_lie_in_blocks(weight: torch.Tensor) -> bool:
    """Whether a plain weight of this shape may be laid in blocks on this machine, unless oneDNN chooses otherwise.

    Where oneDNN packs no bfloat16, torch must be known to be slow in it.
    """
    if not weight.numel() or weight.shape[1] % TOGETHER:
        return False
    return readable() if packs(torch.bfloat16) else slow_on_cpu(torch.bfloat16)


def laid_in_blocks(weight: torch.Tensor) -> torch.Tensor | None:
    """A plain [N, K] bfloat16 weight that can, packed so that it lies in blocks; `None`: oneDNN chooses otherwise."""
    if not packs(torch.bfloat16):
        return BlockWeight(weight.shape, _blocks(weight))
    found = packed(weight)
    return None if blocks_of(found) is None else found


def is_packed(weight: torch.Tensor) -> bool:
    """Whether a weight is oneDNN's, or there is only its memory in blocks."""
    return weight.is_mkldnn or isinstance(weight, BlockWeight)


def dense(weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A packed weight as a plain one of this dtype."""
    if not isinstance(weight, BlockWeight):
        return weight.to_dense(dtype)
    numbers = lines_of(weight.blocks, *weight.shape)
    return torch.from_numpy(numbers.view(np.int16)).view(torch.bfloat16).to(dtype)


def blocks_of(weight: torch.Tensor) -> np.ndarray | None:
    """Flat uint16, the memory of a packed [N, K] weight; who reads it keeps the weight.

    `None` where the weight is of another dtype, or lies in another layout, or K is odd.
    """
    if isinstance(weight, BlockWeight):
        return weight.blocks
    if weight.dtype is not torch.bfloat16 or not weight.is_mkldnn or not readable():
        return None
    return memory(weight) if _lies_in_blocks(*weight.shape, layout(weight)) else None


def lines_of(blocks: np.ndarray, lines: int, size: int) -> np.ndarray:
    """[N, K] of the memory of blocks, in memory of their own."""
    parts = blocks.view(PAIR).reshape(_filled(lines) // LINES, -1, LINES)
    whole: np.ndarray = parts.transpose(0, 2, 1).copy().view(np.uint16)
    return whole.reshape(len(parts) * LINES, -1)[:lines, :size]


def _blocks(weight: torch.Tensor) -> np.ndarray:
    """The other way round, of a plain bfloat16 weight."""
    lines, size = weight.shape
    filled = pad(weight.contiguous(), (0, 0, 0, _filled(lines) - lines))
    pairs = filled.view(-1, LINES, size).view(torch.int32).transpose(1, 2).contiguous()
    found: np.ndarray = pairs.numpy().reshape(-1).view(np.uint16)
    return found


@lru_cache(maxsize=256)
def _lies_in_blocks(lines: int, size: int, described: bytes) -> bool:
    """Whether a [lines, size] weight in this layout does."""
    if size % TOGETHER:
        return False
    few = min(lines, MOST - LINES + lines % LINES)  # the same number in the last block
    numbers = np.random.default_rng(0).integers(0, NUMBERS, (few, size), np.uint16)
    weight = packed(torch.from_numpy(numbers.view(np.int16)).view(torch.bfloat16))
    blocks = memory(weight)
    if not _differ_by(described, layout(weight), lines, few) or blocks.size % (_filled(few) * TOGETHER):
        return False
    found = lines_of(blocks, few, size)
    return found.shape == numbers.shape and bool((found == numbers).all())


def _differ_by(one: bytes, other: bytes, lines: int, few: int) -> bool:
    """Whether two layouts differ by numbers of lines alone, and in nothing that tells where a number lies."""
    if len(one) != len(other):
        return False
    words = len(one) // WORD * WORD
    pairs = zip(*(np.frombuffer(each[:words], np.int64).tolist() for each in (one, other)), strict=True)
    differing = {pair for pair in pairs if pair[0] != pair[1]}
    return differing <= {(lines, few), (_filled(lines), _filled(few))} and one[words:] == other[words:]


def _filled(lines: int) -> int:
    """Lines of as many blocks as these take."""
    return -(-lines // LINES) * LINES
