"""Numbers as bits: tensors as arrays of them, which the loops take."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from lade.base.compiled import compiled

DTYPES = (torch.float32, torch.bfloat16)
SHORT_BYTES = 2  # of a bfloat16


def bits_of(states: torch.Tensor) -> Any:
    """A flat array of a contiguous tensor's memory: uint16 of bfloat16, uint32 of float32."""
    if states.dtype is torch.float32:
        return states.numpy().view(np.uint32).reshape(-1)
    return states.view(torch.int16).numpy().view(np.uint16).reshape(-1)


def addresses(tensors: Iterable[torch.Tensor]) -> list[int]:
    """Where tensors lie."""
    return [*map(torch.Tensor.data_ptr, tensors)]


@compiled
def number(bits: Any, short: bool) -> Any:
    """The float32 that bits stand for; those of a bfloat16 are the upper half of it."""
    if short:
        return np.uint32(np.uint32(bits) << np.uint32(16)).view(np.float32)
    return np.uint32(bits).view(np.float32)


@compiled
def rounded(value: Any, short: bool) -> Any:
    """The bits of a float32, or of the bfloat16 nearest to it, of two equally near ones the even one."""
    bits = np.float32(value).view(np.uint32)
    if short:
        odd = np.uint32(np.uint32(bits >> np.uint32(16)) & np.uint32(1))
        return np.uint32(np.uint32(bits + np.uint32(0x7FFF) + odd) >> np.uint32(16))
    return bits
