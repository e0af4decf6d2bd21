"""Sampling noise, drawn from the generator that plain decoding uses, in the same order.

`torch.multinomial(p, 1)` is `argmax(p / noise)` with exponential noise of p's shape. Noise for the whole batch is drawn
once per emitted index and kept until the slowest row has used it; the generator is rewound to the last used index.
"""

from __future__ import annotations

from collections import deque

import torch


class Noise:
    """Exponential noise [B, V] per emitted index.

    Args:
        rows: B, finished rows included, since plain decoding draws for them too.
        device: its default generator is used.
    """

    def __init__(self, rows: int, device: torch.device) -> None:
        self.rows = rows
        self.device = device
        self._first = 0
        self._drawn: deque[torch.Tensor] = deque()
        self._states: deque[torch.Tensor] = deque([_get_state(device)])  # before index `_first`, and after each draw

    def at(self, index: int, vocabulary: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """[B, V] noise of one emitted index that is not forgotten.

        Args:
            dtype: of the probabilities; the drawn numbers depend on it.
        """
        while index >= self._first + len(self._drawn):
            noise = torch.empty(self.rows, vocabulary, dtype=dtype, device=self.device).exponential_(1)
            self._drawn.append(noise)
            self._states.append(_get_state(self.device))
        return self._drawn[index - self._first]

    def forget(self, below: int) -> None:
        """Drop the noise of indices below this one."""
        while self._first < below and self._drawn:
            self._drawn.popleft()
            self._states.popleft()
            self._first += 1

    def rewind(self, used: int) -> None:
        """Set the generator to its state after plain decoding has sampled `used` tokens of the longest row."""
        if used - self._first < len(self._drawn):
            _set_state(self.device, self._states[used - self._first])


def choose(probabilities: torch.Tensor, noise: torch.Tensor) -> list[int]:
    """`draw`, with an error if a row is not a distribution."""
    return [checked(token) for token in draw(probabilities, noise)]


def checked(token: int) -> int:
    """A token that was drawn.

    Raises:
        RuntimeError: it is -1; the message is that of `torch.multinomial`.
    """
    if token < 0:
        raise RuntimeError("probability tensor contains either `inf`, `nan` or element < 0")
    return token


def draw(probabilities: torch.Tensor, noise: torch.Tensor) -> list[int]:
    """R tokens from [R, V] probabilities and [R, V] noise; -1 where a row is not a distribution."""
    values, drawn = _on_host(*(probabilities / noise).max(-1))
    return [
        token if value > 0 or _is_distribution(probabilities[row]) else -1
        for row, (value, token) in enumerate(zip(values, drawn, strict=True))
    ]


def _on_host(values: torch.Tensor, indices: torch.Tensor) -> tuple[list[float], list[int]]:
    """Two [R] tensors as lists, in one copy from an accelerator."""
    if values.device.type == "cpu":
        return values.tolist(), indices.tolist()
    both = torch.stack([values.double(), indices.double()]).tolist()
    return both[0], list(map(int, both[1]))


def _is_distribution(probabilities: torch.Tensor) -> bool:
    """For draws whose value does not tell: noise in half precision may be 0."""
    fine = (probabilities >= 0) & (probabilities < torch.inf)
    return bool(fine.all() and probabilities.sum() > 0)


def _get_state(device: torch.device) -> torch.Tensor:
    if device.type == "cpu":
        return torch.get_rng_state()
    return torch.get_device_module(device).get_rng_state(device)


def _set_state(device: torch.device, state: torch.Tensor) -> None:
    if device.type == "cpu":
        torch.set_rng_state(state)
    else:
        torch.get_device_module(device).set_rng_state(state, device)
