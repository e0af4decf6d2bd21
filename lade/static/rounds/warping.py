"""Temperature, top-k and top-p of each slot's request, so that requests with different ones share a captured step.

N nodes, S slots, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from transformers import LogitsProcessor, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from lade.base.powers import power_of_two

CLASSES = TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper  # in the order of transformers
ALL = -1.0  # no sum of probabilities is below it


class Warping(NamedTuple):
    """What one request asks for; `None`: nothing."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None


class Split(NamedTuple):
    """Processors of one request: those before its warping, the warping, and those behind it."""

    before: Sequence[Any]
    warping: Warping
    behind: Sequence[Any]


def split(processors: Sequence[Any]) -> Split:
    """Warpers in another order than transformers', or with other arguments, are processors like others."""
    own = [index for index, each in enumerate(processors) if type(each) in CLASSES]
    first = own[0] if own else len(processors)
    found = processors[first : first + len(own)]
    kinds = [CLASSES.index(type(each)) if type(each) in CLASSES else -1 for each in found]
    if -1 in kinds or kinds != sorted(set(kinds)) or not all(map(_usual, found)):
        return Split(processors, Warping(), ())
    temperature, top_k, top_p = ([each for each in found if type(each) is kind] for kind in CLASSES)
    warping = Warping(
        temperature[0].temperature if temperature else None,
        top_k[0].top_k if top_k else None,
        top_p[0].top_p if top_p else None,
    )
    return Split(processors[:first], warping, processors[first + len(own) :])


def _usual(warper: Any) -> bool:
    """Whether what it drops gets no probability, and one token always stays."""
    kept = getattr(warper, "min_tokens_to_keep", 1)
    return getattr(warper, "filter_value", -torch.inf) == -torch.inf and kept == 1


class Used(NamedTuple):
    """What a step does, for which all its requests' warpings are done.

    Attributes:
        most: the largest top-k, a power of two; 0 where there is none.
    """

    temperature: bool
    most: int
    top_p: bool


def used(warpings: Iterable[Warping]) -> Used:
    """What a step must do for requests with these."""
    temperatures, numbers, shares = zip(*warpings, strict=True)
    most = max((number for number in numbers if number is not None), default=0)
    return Used(any(map(_asked, temperatures)), power_of_two(most) if most else 0, any(map(_asked, shares)))


def _asked(parameter: float | None) -> bool:
    return parameter is not None


class SlotWarping:
    """The parameters of all slots, on the device."""

    def __init__(self, slots: int, device: torch.device) -> None:
        self.temperatures = torch.ones(slots, device=device)
        self.numbers = torch.zeros(slots, dtype=torch.long, device=device)  # top-k; 0: all tokens
        self.dropped = torch.full((slots,), ALL, device=device)  # probability of the tokens that top-p drops, at most

    def begin(self, slot: int, warping: Warping) -> None:
        """Another request is in this slot."""
        self.temperatures[slot] = 1.0 if warping.temperature is None else warping.temperature
        self.numbers[slot] = warping.top_k or 0
        self.dropped[slot] = ALL if warping.top_p is None else 1 - warping.top_p

    def processors(self, step: Used) -> list[LogitsProcessor]:
        """For scores of nodes in slots, which stand in place of the text."""
        found: list[LogitsProcessor] = [SlotTemperature(self.temperatures)] if step.temperature else []
        found += [SlotTopK(self.numbers, step.most)] if step.most else []
        return [*found, SlotTopP(self.dropped)] if step.top_p else found


class SlotTemperature(LogitsProcessor):
    """`TemperatureLogitsWarper` with one of each slot."""

    def __init__(self, temperatures: torch.Tensor) -> None:
        self.temperatures = temperatures

    def __call__(self, slots: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """[N, V] of [N, 1] slots and [N, V] scores."""
        own = self.temperatures[slots]
        return scores * (1 / own) if scores.is_cuda else scores / own  # as torch divides by a number


class SlotTopK(LogitsProcessor):
    """`TopKLogitsWarper` with one of each slot.

    Args:
        most: no less than the largest one.
    """

    def __init__(self, numbers: torch.Tensor, most: int) -> None:
        self.numbers, self.most = numbers, most

    def __call__(self, slots: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """[N, V] of [N, 1] slots and [N, V] scores."""
        numbers = self.numbers[slots]
        best = scores.topk(min(self.most, scores.shape[1]))[0]
        least = best.gather(1, (numbers - 1).clamp(0, best.shape[1] - 1)).masked_fill(numbers == 0, -torch.inf)
        return scores.masked_fill(scores < least, -torch.inf)


class SlotTopP(LogitsProcessor):
    """`TopPLogitsWarper` with one of each slot."""

    def __init__(self, dropped: torch.Tensor) -> None:
        self.dropped = dropped

    def __call__(self, slots: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """[N, V] of [N, 1] slots and [N, V] scores."""
        ascending, tokens = scores.sort()
        low = ascending.softmax(-1).cumsum(-1) <= self.dropped[slots]
        low = torch.cat([low[:, :-1], torch.zeros_like(low[:, -1:])], dim=1)
        return scores.masked_fill(low.scatter(1, tokens, low), -torch.inf)
