"""Angles of rotary positions (arXiv 2104.09864), computed once for each position.

T nodes, P positions, D head size.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from lade.base.bits import bits_of

FIRST, MOST = 1 << 10, 1 << 16  # positions that are kept at first, and at most


class Angles:
    """Cosines and sines of positions, as the bits of a model's states.

    Args:
        rotary: a module whose frequencies do not depend on the text's length.
        dtype: of the states.
    """

    def __init__(self, rotary: Any, dtype: torch.dtype) -> None:
        self._rotary, self._dtype = rotary, dtype
        self._where, self._bytes = 0, np.empty(0, np.uint8)  # of the frequencies
        self._made_of: tuple[bytes, float] | None = None
        self._kept = np.empty((2, 0, 0))  # cosines and sines, [2, P, D / 2]

    def of(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Cosines and sines of [T] positions, T * D / 2 bits each."""
        most = positions.view(np.uint64).max()  # of a negative one it is larger
        if most >= MOST:
            return self._computed(torch.from_numpy(positions))
        frequencies = self._rotary.inv_freq
        if frequencies.data_ptr() != self._where:
            self._where, self._bytes = frequencies.data_ptr(), frequencies.view(torch.uint8).numpy()
        made_of = self._bytes.tobytes(), self._rotary.attention_scaling
        if made_of != self._made_of or most >= self._kept.shape[1]:
            self._keep(max(FIRST, 1 << int(most).bit_length()))
            self._made_of = made_of
        cosines, sines = self._kept.take(positions, 1).reshape(2, -1)
        return cosines, sines

    def _keep(self, positions: int) -> None:
        kept = self._computed(torch.arange(positions, device="cpu"))
        self._kept = np.stack(kept).reshape(2, positions, -1)

    def _computed(self, positions: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
        rotary = self._rotary
        angles = positions.view(-1, 1).float() * rotary.inv_freq
        cosines, sines = angles.cos(), angles.sin()
        if rotary.attention_scaling != 1:
            cosines, sines = cosines * rotary.attention_scaling, sines * rotary.attention_scaling
        return bits_of(cosines.to(self._dtype)), bits_of(sines.to(self._dtype))
