"""Which way is the fastest for a shape, of attention or of all layers, by the time that it takes in the forwards.

Where several ways fit, the first calls take them in turn; after that the fastest one computes all. Knows the names and
times of ways, not what they do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Generic, Protocol, TypeVar

import torch

from lade.target.ways import Call, Way

SAMPLES = 12  # timed calls of each way of attention
FEWEST, CLEAR = 2, 0.8  # samples that suffice where all of one way's take less than this share of every other's
GAIN = 0.03  # share of the rule's time that another way must save
REMEMBERED = 4096  # shapes
FINEST = 1e-6  # seconds
# Of this thread alone where that is fine enough: other processes do not disturb it, and threads of a call work alike.
CLOCK = time.thread_time if time.get_clock_info("thread_time").resolution < FINEST else time.perf_counter

Shape = tuple[object, ...]


class Event(Protocol):
    """A CUDA event."""

    def query(self) -> bool:
        """Whether the device has passed it."""

    def elapsed_time(self, end: Any) -> float:
        """Milliseconds until another one."""


class Named(Protocol):
    """What is chosen among."""

    @property
    def name(self) -> str:
        """No other way for this shape has it."""


Each = TypeVar("Each", bound=Named)
Found = TypeVar("Found")

_choices: dict[Shape, Choice[Any]] = {}
_tried = 0  # ways so far


@dataclass(frozen=True, slots=True)
class Ways:
    """The ways that a target may use.

    Attributes:
        each: the first that fits is the rule.
        timed: whether another one that is faster takes its place.
    """

    each: tuple[Way, ...]
    timed: bool = True


class Choice(Generic[Each]):
    """Of one way among those that fit a shape.

    Args:
        ways: the first is the rule, which another way must beat.
        samples: timed calls of each; `None` for `SAMPLES`.

    Attributes:
        best: `None` until each way was timed.
    """

    def __init__(self, ways: Sequence[Each], samples: int | None = None) -> None:
        self.ways, self._needed = ways, samples or SAMPLES
        self.best = ways[0] if len(ways) == 1 else None
        self._seconds: dict[str, list[float]] = {way.name: [] for way in ways}
        self._tried = dict.fromkeys(self._seconds, 0)
        self._expected: list[tuple[Each, Event, Event]] = []

    def next(self) -> Each:
        """The way that was tried least often, which counts as tried then."""
        global _tried
        _tried += 1
        way = min(self.ways, key=lambda way: self._tried[way.name])
        self._tried[way.name] += 1
        return way

    def expect(self, way: Each, begin: Event, end: Event) -> None:
        """Note the time between two events once both have passed."""
        self._expected.append((way, begin, end))
        while self._expected and self._expected[0][2].query():
            done, first, last = self._expected.pop(0)
            self.note(done, first.elapsed_time(last) / 1000)

    def note(self, way: Each, seconds: float) -> None:
        """The time of one call. The last one that was needed decides."""
        self._seconds[way.name].append(seconds)
        samples = min(map(len, self._seconds.values()))
        if samples >= self._needed or (samples >= FEWEST and self._is_clear()):
            usual = {each.name: median(self._seconds[each.name]) for each in self.ways}
            rule, fastest = self.ways[0], min(self.ways, key=lambda each: usual[each.name])
            self.best = fastest if usual[fastest.name] < (1 - GAIN) * usual[rule.name] else rule

    def _is_clear(self) -> bool:
        """Whether all samples of one way are far below those of the others."""
        fastest, *others = sorted(self._seconds.values(), key=max)
        return max(fastest) < CLEAR * min(map(min, others))


def tried() -> int:
    """Changes whenever a way is tried: what is computed meanwhile takes another time than later."""
    return _tried


def attend(choice: Choice[Way], call: Call) -> tuple[torch.Tensor, str]:
    """[1, T, G * H, D], and the name of the way that computed it."""
    if choice.best is not None:
        return choice.best.attend(call), choice.best.name
    way = choice.next()
    if call.query.is_cuda:
        return _timed_there(choice, way, call), way.name
    return timed(choice, way, lambda: way.attend(call)), way.name


def timed(choice: Choice[Each], way: Each, compute: Callable[[], Found]) -> Found:
    """What a way computes on the host. Its time is noted."""
    begin = CLOCK()
    found = compute()
    choice.note(way, CLOCK() - begin)
    return found


def _timed_there(choice: Choice[Way], way: Way, call: Call) -> torch.Tensor:
    """Timed by events of the device, which are read once they have passed: nothing waits for them."""
    if torch.cuda.is_current_stream_capturing():
        return choice.ways[0].attend(call)
    make: Callable[..., Any] = torch.cuda.Event
    begin, end = make(enable_timing=True), make(enable_timing=True)
    begin.record()
    found = way.attend(call)
    end.record()
    choice.expect(way, begin, end)
    return found


def choice_for(ways: Ways, call: Call) -> Choice[Way]:
    """The choice for a layer, shared by all layers of about this shape of all models.

    Raises:
        NotImplementedError: no way fits.
    """
    fit = tuple(way for way in ways.each if way.fits(call))
    if not fit:
        raise NotImplementedError("no way of attention knows the model's scores")
    if len(fit) == 1 or not ways.timed:
        return Choice(fit[:1])
    kind, query, key = call.kind, call.query, call.key
    shape = (
        tuple(way.name for way in fit),
        (query.device, query.dtype, torch.get_num_threads()),
        (query.shape[1], key.shape[1], query.shape[3], len(kind.nodes)),
        (query.shape[2].bit_length(), sum(end - begin for begin, end in kind.spans).bit_length()),
    )
    return choice_among(shape, fit)


def choice_among(shape: Shape, ways: Sequence[Each], samples: int | None = None) -> Choice[Each]:
    """The choice for a shape, always the same one; arguments as of `Choice`."""
    found: Choice[Each] | None = _choices.get(shape)
    if found is None:
        if len(_choices) >= REMEMBERED:
            _choices.clear()
        found = _choices.setdefault(shape, Choice(ways, samples))
    return found
