"""Integers of one forward on their way to the device: collected on the host, sent in one transfer."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch


class Upload:
    """Lists of integers that become parts of one int64 tensor."""

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._sent: torch.Tensor | None = None

    def add(self, numbers: Iterable[int]) -> Part:
        """What the numbers become once they are sent."""
        first = len(self._numbers)
        self._numbers += numbers
        return Part(self, first, len(self._numbers) - first)

    def send(self, device: torch.device) -> None:
        numbers = torch.from_numpy(np.array(self._numbers, dtype=np.int64))
        if device.type == "cuda":
            numbers = numbers.pin_memory()
        self._sent = numbers if device.type == "cpu" else numbers.to(device, non_blocking=True)


class Part:
    """Numbers of an upload."""

    __slots__ = ("_first", "_length", "_upload")

    def __init__(self, upload: Upload, first: int, length: int) -> None:
        self._upload, self._first, self._length = upload, first, length

    def __len__(self) -> int:
        return self._length

    @property
    def there(self) -> torch.Tensor:
        """[length] on the device, once the upload is sent."""
        assert self._upload._sent is not None
        return self._upload._sent.narrow(0, self._first, self._length)
