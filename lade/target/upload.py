"""Integers of one forward on their way to the device: collected on the host, sent in one transfer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

Numbers = Sequence[int] | np.ndarray


class Upload:
    """Lists of integers that become slices of one int64 tensor."""

    def __init__(self) -> None:
        self._parts: list[np.ndarray] = []
        self._size = 0

    def add(self, numbers: Numbers) -> slice:
        """Where the numbers will lie in the tensor that `send` returns."""
        part = np.asarray(numbers, dtype=np.int64).reshape(-1)
        self._parts.append(part)
        first, self._size = self._size, self._size + len(part)
        return slice(first, self._size)

    def send(self, device: torch.device) -> torch.Tensor:
        numbers = torch.from_numpy(np.concatenate(self._parts))
        if device.type == "cpu":
            return numbers
        if device.type == "cuda":
            numbers = numbers.pin_memory()
        return numbers.to(device, non_blocking=True)
