"""What the model predicts at the positions that a step of vLLM computes: top-k of its logits, read as they are made.

vLLM's sampler may change logits in place, so they are read before it sees them. M lines of a step, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lade.core.readout import READ_ROWS, read_out
from lade.core.topk import likeliest
from lade.engine.decoding import GREEDY_INVERSE_TEMPERATURE
from lade.memory.predictions import TOP

LINES = 128  # of logits that are read at once, to keep copies of them small
SHARPNESS = GREEDY_INVERSE_TEMPERATURE  # the temperatures of requests are not told

OnHost = tuple[np.ndarray, np.ndarray]  # [M, TOP] int32 tokens and their [M, TOP] float32 probabilities
NOTHING: OnHost = np.zeros((0, TOP), np.int32), np.zeros((0, TOP), np.float32)


@dataclass(frozen=True, slots=True)
class Outputs:
    """The logits of a step.

    Attributes:
        lines: M; 0 where it is not sure which logits were those of the step.
        top: as machine code read it, or as torch did, where the logits are: [M, 2 TOP] int32, tokens and then the bits
            of their float32 probabilities; `None` where nobody asked.
    """

    lines: int = 0
    top: OnHost | torch.Tensor | None = None


class Logits:
    """Reads the logits of every step.

    Attributes:
        wanted: whether the top-k of the next step will be learned.
        calls: how often the model has computed logits since `take`.
    """

    def __init__(self) -> None:
        self.wanted, self.calls = True, 0
        self._outputs = Outputs()

    def wrap(self, compute_logits: Callable[..., torch.Tensor | None]) -> Callable[..., torch.Tensor | None]:
        """A model's `compute_logits` that is read."""

        def compute(*arguments: Any, **options: Any) -> torch.Tensor | None:
            logits = compute_logits(*arguments, **options)
            if logits is not None:
                self._read(logits)
            return logits

        return compute

    def _read(self, logits: torch.Tensor) -> None:
        self.calls += 1
        if self.calls > 1:  # log probabilities of a prompt, or a step without a call of the proposer
            self._outputs = Outputs()
            return
        self._outputs = Outputs(logits.shape[0], _top(logits) if self.wanted else None)

    def take(self) -> Outputs:
        """Those since the last call."""
        outputs, self._outputs, self.calls = self._outputs, Outputs(), 0
        return outputs


def _top(logits: torch.Tensor) -> OnHost | torch.Tensor:
    """As in `Outputs`; on a CPU by machine code, in a quarter of torch's time.

    Behind a forward nothing is in the processor's caches, and any call of numpy or torch takes 20 to 60 microseconds.
    """
    if READ_ROWS.ready and logits.is_cpu:
        numbers = logits if logits.dtype in (torch.float32, torch.bfloat16) else logits.float()
        found = read_out(numbers, logits.shape[-1], TOP, SHARPNESS)
        if not any(found.nan.tolist()):
            return found.tokens, found.probabilities
    return torch.cat([_top_by_torch(part) for part in torch.split(logits, LINES)])


def _top_by_torch(logits: torch.Tensor) -> torch.Tensor:
    tokens, probabilities = likeliest(logits, TOP, SHARPNESS)
    return torch.cat([tokens.to(torch.int32), probabilities.float().view(torch.int32)], dim=1)


def _on_host(top: OnHost | torch.Tensor | None) -> OnHost:
    if top is None:
        return NOTHING
    if not isinstance(top, torch.Tensor):
        return top
    host = top.cpu().numpy()
    return host[:, :TOP].copy(), host[:, TOP:].copy().view(np.float32)


class Lines:
    """What a drafter reads of the logits of some requests (`lade.core.drafter.Predictions`).

    Args:
        top: as in `Outputs`; none for no requests.
        spans: the lines of each request.
    """

    def __init__(self, top: OnHost | torch.Tensor | None, spans: Sequence[range]) -> None:
        self._top, self._spans = _on_host(top), spans

    def greedy(self, slot: int, node: int) -> int:
        return int(self._top[0][self._spans[slot][node], 0])

    def likeliest(self) -> OnHost:
        return self._top

    def lines_of(self, slot: int, nodes: Sequence[int]) -> list[int]:
        span = self._spans[slot]
        return [span[node] for node in nodes]
