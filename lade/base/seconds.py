"""How long work takes, on any device."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

REPEATS = 8


def least_seconds(work: Callable[[], object], device: torch.device, repeats: int = REPEATS) -> float:
    """Of one run, the least of some: by events on a CUDA device, since launches return at once."""
    found = []
    for _ in range(repeats):
        if device.type == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begin.record()
            work()
            end.record()
            end.synchronize()
            found.append(begin.elapsed_time(end) / 1e3)
        else:
            start = time.perf_counter()
            work()
            found.append(time.perf_counter() - start)
    return min(found)
