"""User code: awkward processors, criteria and a streamer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, StoppingCriteria
from transformers.generation.streamers import BaseStreamer


class StopError(Exception):
    """An exception of user code during a call."""


class Diary(LogitsProcessor):
    """Penalises the token three positions back, more with every call; records its inputs."""

    def __init__(self, notes: list[Any]) -> None:
        self.notes, self.calls = notes, 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.notes.append(("processor", input_ids.tolist()))
        self.calls += 1
        dislike = torch.full((len(scores), 1), -0.25 * self.calls, dtype=scores.dtype)
        return scores.scatter_add(1, input_ids[:, -3:][:, :1], dislike)


class Halves(LogitsProcessor):
    """Returns scores in bfloat16."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores.to(torch.bfloat16)


class InPlace(LogitsProcessor):
    """Changes scores in place and returns them."""

    def __init__(self, token: int) -> None:
        self.token = token

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        scores[:, self.token] += 1.5
        return scores


class Raises(LogitsProcessor):
    """Raises at the k-th new token."""

    def __init__(self, tokens: int, error: type[BaseException]) -> None:
        self.left, self.error = tokens, error

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.left -= 1
        if self.left < 0:
            raise self.error("of a user's processor")
        return scores


class Count(StoppingCriteria):
    """Stops a row after a number of certain tokens; records its inputs."""

    def __init__(self, notes: list[Any], tokens: list[int], times: int) -> None:
        self.notes, self.tokens, self.times = notes, tokens, times

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        self.notes.append(("criterion", input_ids.tolist()))
        return torch.isin(input_ids, torch.tensor(self.tokens)).sum(1) >= self.times


class Sums(StoppingCriteria):
    """One value for the whole batch, as in older criteria."""

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> bool:
        return bool(input_ids[:, -4:].sum() % 7 == 0)


class Log(BaseStreamer):
    """Records its tokens; may raise at the k-th call."""

    def __init__(self, raise_at: int | None = None, error: type[BaseException] = StopError) -> None:
        self.handed: list[Any] = []
        self.raise_at, self.error = raise_at, error

    def put(self, value: Tensor) -> None:
        if self.raise_at is not None and len(self.handed) >= self.raise_at:
            raise self.error("of a user's streamer")
        self.handed.append((tuple(value.shape), value.dtype, value.tolist()))

    def end(self) -> None:
        self.handed.append("end")
