"""Sampling noise, drawn from the generator that plain decoding uses, in the same order.

`torch.multinomial(p, 1)` is `argmax(p / noise)` with exponential noise of p's shape. Noise for the whole batch is drawn
once per emitted index and kept until the slowest row has used it; the generator is rewound to the last used index.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
import torch


class Noise:
    """Exponential noise [B, V] per emitted index.

    Args:
        rows: B, finished rows included, since plain decoding draws for them too.
        device: where the noise is made.
        generator: of this device; `None` for its default one, which plain decoding uses.
    """

    def __init__(self, rows: int, device: torch.device, generator: torch.Generator | None = None) -> None:
        self.rows, self.device, self._generator = rows, device, generator
        self._first = 0
        self._drawn: deque[torch.Tensor] = deque()
        self._states: dict[int, torch.Tensor] = {}  # of the generator before an index that may not be used

    def at(
        self, index: int, vocabulary: int, dtype: torch.dtype = torch.float32, certain: bool = False
    ) -> torch.Tensor:
        """[B, V] noise of one emitted index that is not forgotten.

        Args:
            dtype: of the probabilities; the drawn numbers depend on it.
            certain: whether a token of this index is emitted whatever it is, so that the noise is never taken back.
        """
        while index >= self._first + len(self._drawn):
            if not certain:
                self._states[self._first + len(self._drawn)] = self._state()
            noise = torch.empty(self.rows, vocabulary, dtype=dtype, device=self.device)
            self._drawn.append(noise.exponential_(1, generator=self._generator))
        return self._drawn[index - self._first]

    def ahead(self, row: int) -> Callable[[int], np.ndarray] | None:
        """Gives [V] noise of a row, by emitted index, once the noise of some index is drawn; `None` on a device.

        Only where nobody else draws from the generator meanwhile.
        """

        def noise(index: int) -> np.ndarray:
            found: np.ndarray = self.at(index, self._drawn[-1].shape[-1])[row].numpy()
            return found

        return noise if self.device.type == "cpu" else None

    def draw_up_to(self, used: int, vocabulary: int, dtype: torch.dtype = torch.float32) -> None:
        """Draw what plain decoding has drawn for `used` tokens of the longest row, as far as it is not drawn yet."""
        if used > self._first + len(self._drawn):
            self.at(used - 1, vocabulary, dtype)

    def forget(self, below: int) -> None:
        """Drop the noise of indices below this one."""
        while self._first < below and self._drawn:
            self._drawn.popleft()
            self._states.pop(self._first, None)
            self._first += 1

    def rewind(self, used: int) -> None:
        """Set the generator to its state after plain decoding has sampled `used` tokens of the longest row."""
        state = self._states.get(used)
        if state is not None:
            self._set_state(state)

    def _state(self) -> torch.Tensor:
        if self._generator is not None:
            return self._generator.get_state()
        if self.device.type == "cpu":
            return torch.get_rng_state()
        return torch.get_device_module(self.device).get_rng_state(self.device)

    def _set_state(self, state: torch.Tensor) -> None:
        if self._generator is not None:
            self._generator.set_state(state)
        elif self.device.type == "cpu":
            torch.set_rng_state(state)
        else:
            torch.get_device_module(self.device).set_rng_state(state, self.device)


def choose(probabilities: torch.Tensor, noise: torch.Tensor) -> list[int]:
    """`draw` on the host, with an error if a row is not a distribution."""
    return [checked(token) for token in draw(probabilities, noise).tolist()]


def checked(token: int) -> int:
    """A token that was drawn.

    Raises:
        RuntimeError: it is -1; the message is that of `torch.multinomial`.
    """
    if token < 0:
        raise RuntimeError("probability tensor contains either `inf`, `nan` or element < 0")
    return token


def draw(probabilities: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """[R] tokens from [R, V] probabilities and [R, V] noise; -1 where a row is not a distribution."""
    values, tokens = (probabilities / noise).max(-1)
    if values.device.type == "cpu" and all(value > 0 for value in values.tolist()):
        return tokens
    # Noise in half precision may be 0, so the value alone does not tell.
    distribution = ((probabilities >= 0) & (probabilities < torch.inf)).all(-1) & (probabilities.sum(-1) > 0)
    return torch.where((values > 0) | distribution, tokens, -1)


def draw_each(probabilities: torch.Tensor, noise: Sequence[torch.Tensor]) -> torch.Tensor:
    """`draw` for probabilities that softmax made, which it overwrites.

    Args:
        noise: [V] per row, in float32; rows may share one. It is not stacked, which would take as much memory again.
    """
    distribution = probabilities[:, 0] >= 0  # softmax makes all of a row NaN, or none
    torch._foreach_div_(list(probabilities.unbind(0)), list(noise))
    return torch.where(distribution, probabilities.argmax(-1), -1)
