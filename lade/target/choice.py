"""Which way of attention is the fastest for a shape, by the time that layers take in the forwards themselves.

Where several ways fit, the layers of the first forwards take them in turn; after that the fastest one computes all.
Knows the ways' names and times, not what they do.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import torch

from lade.target.partial import HostKernels
from lade.target.ways import SHORTEST_PREFIX, Call, Masked, Split, Together, Way

SAMPLES = 12  # timed calls of each way
GAIN = 0.03  # share of the rule's time that another way must save
REMEMBERED = 4096  # shapes

Shape = tuple[object, ...]

_choices: dict[Shape, Choice] = {}


@dataclass(frozen=True, slots=True)
class Ways:
    """The ways that a target may use.

    Attributes:
        each: the first that fits is the rule.
        timed: whether another one that is faster takes its place.
    """

    each: tuple[Way, ...]
    timed: bool = True


USUAL = Ways((Together(), Masked(), Split(HostKernels(), SHORTEST_PREFIX)))


class Choice:
    """Of one way among those that fit a shape.

    Args:
        ways: the first is the rule, which another way must beat.

    Attributes:
        best: `None` until each way was timed.
    """

    def __init__(self, ways: Sequence[Way]) -> None:
        self.ways = ways
        self.best = ways[0] if len(ways) == 1 else None
        self._seconds: dict[str, list[float]] = {way.name: [] for way in ways}

    def next(self) -> Way:
        """The way that was timed least often."""
        return min(self.ways, key=lambda way: len(self._seconds[way.name]))

    def note(self, way: Way, seconds: float) -> None:
        """The time of one call. The last one that was needed decides."""
        self._seconds[way.name].append(seconds)
        if min(map(len, self._seconds.values())) >= SAMPLES:
            usual = {each.name: median(self._seconds[each.name]) for each in self.ways}
            rule, fastest = self.ways[0], min(self.ways, key=lambda each: usual[each.name])
            self.best = fastest if usual[fastest.name] < (1 - GAIN) * usual[rule.name] else rule


def attend(choice: Choice, call: Call) -> tuple[torch.Tensor, str]:
    """[1, T, G * H, D], and the name of the way that computed it."""
    if choice.best is not None:
        return choice.best.attend(call), choice.best.name
    way = choice.next()
    begin = time.perf_counter()
    found = way.attend(call)
    choice.note(way, time.perf_counter() - begin)
    return found, way.name


def choice_for(ways: Ways, call: Call) -> Choice:
    """The choice for a layer, shared by all layers of about this shape of all models."""
    fit = tuple(way for way in ways.each if way.fits(call))
    if len(fit) == 1 or not ways.timed:
        return Choice(fit[:1])
    kind, query, key = call.kind, call.query, call.key
    shape = (
        fit,
        (query.device, query.dtype, torch.get_num_threads()),
        (query.shape[1], key.shape[1], query.shape[3], len(kind.nodes)),
        (query.shape[2].bit_length(), sum(end - begin for begin, end in kind.spans).bit_length()),
    )
    if shape not in _choices:
        if len(_choices) >= REMEMBERED:
            _choices.clear()
        _choices[shape] = Choice(fit)
    return _choices[shape]
