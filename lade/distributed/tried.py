"""What steps took by how they were shared: the fastest way is chosen, and others are tried again at times.

Knows numbers only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Generic, NamedTuple, TypeVar

LAST = 5  # steps whose median counts
FIRST = 3  # steps in which each option is tried
AGAIN = 64  # steps after which one is tried again

Option = TypeVar("Option")


class Way(NamedTuple):
    """How a step is shared.

    Attributes:
        ranks: that share it.
        sends: whether keys and values that one of them lacks are sent, and not computed again.
    """

    ranks: int
    sends: bool = False


@dataclass(slots=True)
class Tried(Generic[Option]):
    """The last seconds of steps by what was chosen for them; their median counts, since other processes run, too."""

    seconds: dict[Option, deque[float]] = field(default_factory=dict)
    choices: int = 0

    def observe(self, option: Option, seconds: float) -> None:
        own = self.seconds.setdefault(option, deque(maxlen=LAST))
        others = [median(other) for each, other in self.seconds.items() if each != option]
        if len(own) >= FIRST and others and seconds < min(others) < median(own):
            own.clear()  # it has become the fastest, perhaps: it is tried anew
        own.append(seconds)

    def choose(self, options: Sequence[Option]) -> Option:
        """The fastest; at times one that has not been tried for long."""
        self.choices += 1
        untried = next((option for option in options if not self.known(option)), None)
        if untried is not None:
            return untried
        best = min(options, key=self.median)
        others = [option for option in options if option != best]
        if others and self.choices % AGAIN == 0:
            return others[self.choices // AGAIN % len(others)]
        return best

    def known(self, option: Option) -> bool:
        """Whether it was tried often enough for `median`."""
        return len(self.seconds.get(option, ())) >= FIRST

    def median(self, option: Option) -> float:
        return median(self.seconds[option])


@dataclass(slots=True)
class Kind:
    """Steps of about the same number of tokens and rows."""

    ranks: Tried[int] = field(default_factory=Tried)
    ways: Tried[Way] = field(default_factory=Tried)  # where a rank lacks keys and values

    def observe(self, way: Way, lacked: bool, seconds: float) -> None:
        self.ranks.observe(way.ranks, seconds)
        if lacked:
            self.ways.observe(way, seconds)


Key = tuple[int, int]  # of a kind: bits of the number of tokens, and rows


def key_of(tokens: int, rows: int) -> Key:
    return tokens.bit_length(), rows
