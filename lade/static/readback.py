"""The way back of a static step's output: from a CUDA device into memory that is pinned once. Knows no columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


class Readback:
    """Copies integers of a device to the host, one copy at a time.

    Args:
        event: of CUDA, which the host waits for after each copy; `None` for other devices, whose copies wait.
    """

    def __init__(self, event: Any = None) -> None:
        self._event = event
        self._memory = torch.empty(0, dtype=torch.int32)

    def __call__(self, found: torch.Tensor) -> np.ndarray:
        """All elements of int32, in one row. The next call may overwrite them."""
        if self._event is None:
            return found.cpu().numpy().reshape(-1)
        count = found.numel()
        if count > len(self._memory):
            self._memory = torch.empty(2 * count, dtype=torch.int32, pin_memory=found.is_cuda)
        memory = self._memory[:count]
        memory.copy_(found.reshape(-1), non_blocking=True)
        self._event.record(torch.cuda.current_stream(found.device))
        self._event.synchronize()
        return memory.numpy()
