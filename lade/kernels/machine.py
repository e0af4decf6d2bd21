"""What launches know of a device."""

from __future__ import annotations

import functools
from typing import Any

import torch

SHARED = 227 << 10  # bytes, where no device runs the kernels


@functools.lru_cache(maxsize=8)
def processors(device: torch.device) -> int:
    """Its multiprocessors; 1 without CUDA."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


@functools.lru_cache(maxsize=8)
def shared_memory(device: torch.device) -> int:
    """Bytes that a program may have of a multiprocessor's memory."""
    if device.type != "cuda":
        return SHARED
    properties: Any = torch.cuda.get_device_properties(device)
    return int(properties.shared_memory_per_block_optin)
