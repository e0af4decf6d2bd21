"""Whether the kernels run on a device. Tests let them run in Triton's interpreter by replacing `runs`."""

from __future__ import annotations

import functools
from importlib import metadata

import torch
from packaging.version import Version

OLDEST_TRITON = Version("3.6")
OLDEST_DEVICE = (8, 0)  # compute capability; earlier ones have no products of bfloat16


@functools.lru_cache(maxsize=8)
def runs(device: torch.device) -> bool:
    """Whether this device can run the kernels, and the extra `triton` is there."""
    return device.type == "cuda" and _triton() and torch.cuda.get_device_capability(device) >= OLDEST_DEVICE


def _triton() -> bool:
    try:
        return Version(metadata.version("triton")) >= OLDEST_TRITON
    except metadata.PackageNotFoundError:
        return False
