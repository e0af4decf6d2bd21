"""Programmatic dependent launch: kernels of a chain begin while the one before them ends (sm_90).

A kernel lets the next one begin at once, and waits for the one before it before it reads what that wrote, and before it
writes: so none writes before all earlier ones have ended. Kernels of others in between are ordered as ever.
https://docs.nvidia.com/cuda/cuda-c-programming-guide, "Programmatic Dependent Launch and Synchronization".
"""

from __future__ import annotations

import functools

import torch

OLDEST = (9, 0)  # compute capability


@functools.lru_cache(maxsize=8)
def chained(device: torch.device) -> dict[str, bool]:
    """Arguments of a launch: whether the kernel is one of a chain."""
    if device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(device) >= OLDEST:
        return {"CHAINED": True, "launch_pdl": True}
    return {"CHAINED": False}
