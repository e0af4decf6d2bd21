"""The token ids that processors and criteria read, extended token by token."""

from __future__ import annotations

import torch


class Text:
    """The token ids of all rows, padding included.

    Args:
        input_ids: [B, P]; copied.
    """

    def __init__(self, input_ids: torch.Tensor) -> None:
        self.device = input_ids.device
        self.lengths = [input_ids.shape[1]] * input_ids.shape[0]
        with torch.inference_mode(False):  # tensors of that mode do not count their changes
            self.buffer = input_ids.clone()
        self._changes, self._changed = self.buffer._version, False

    def append(self, row: int, token: int) -> None:
        self._changed = self._is_changed()
        length = self.lengths[row]
        if length == self.buffer.shape[1]:
            with torch.inference_mode(False):
                room = self.buffer.new_zeros(len(self.buffer), max(length, 1))
                self.buffer = torch.cat([self.buffer, room], dim=1)
        self.buffer[row, length] = token
        self.lengths[row] = length + 1
        self._changes = self.buffer._version

    def of(self, row: int) -> torch.Tensor:
        """[1, length] of one row."""
        return self.buffer[row : row + 1, : self.lengths[row]]

    def edited(self, row: int, count: int) -> list[int] | None:
        """The last tokens of one row, where code of the caller's has ever changed a text in place."""
        if not self._is_changed():
            return None
        length = self.lengths[row]
        tokens: list[int] = self.buffer[row, length - count : length].tolist()
        return tokens

    def _is_changed(self) -> bool:
        return self._changed or self.buffer._version != self._changes


class UnreadText:
    """Replaces `Text` where no processor and no criterion reads token ids: stores nothing."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._nothing = torch.zeros(1, 1, dtype=torch.long, device=device)

    def append(self, row: int, token: int) -> None:
        pass

    def of(self, row: int) -> torch.Tensor:
        """[1, 1], whatever the row."""
        return self._nothing

    def edited(self, row: int, count: int) -> None:
        """Nobody changes it."""
