"""Tensors as arrays of bits, which the loops take."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

DTYPES = (torch.float32, torch.bfloat16)


def bits_of(states: torch.Tensor) -> Any:
    """A flat array of a contiguous tensor's memory: uint16 of bfloat16, uint32 of float32."""
    if states.dtype is torch.float32:
        return states.numpy().view(np.uint32).reshape(-1)
    return states.view(torch.int16).numpy().view(np.uint16).reshape(-1)


def tensor_of(bits: np.ndarray) -> torch.Tensor:
    """The flat tensor of bits, in the same memory."""
    if bits.dtype == np.uint32:
        return torch.from_numpy(bits.view(np.float32))
    return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)
