"""What calls on one model have learned about sharing steps, and whether rank 0 should decode alone from now on.

All ranks hold the same times of shared steps, as rank 0 has sent them. Rank 0 alone times steps without an exchange,
decides by them and tells the others. It tries sharing again after some time alone, which doubles as long as sharing
loses. Knows numbers only.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from statistics import median

from lade.distributed.tried import FIRST, LAST, Key, Kind, key_of

ENOUGH = 32  # shared steps after which they are judged
WAIT, LONGEST = 256, 8192  # steps alone until sharing is tried again
GAIN = 0.05  # part of the time of steps alone that sharing must save
UNSURE = 0.15  # the same as long as steps alone were not timed: others may slow down rank 0 even where it decodes alone


class Memory:
    """That of one model and group.

    Args:
        numbers: of ranks that may share a step.
    """

    def __init__(self, numbers: Sequence[int]) -> None:
        self.numbers = numbers
        self.kinds: dict[Key, Kind] = {}
        self._visits: Counter[Key] = Counter()
        self._shared = 0  # steps since sharing was tried anew
        self._lone: dict[Key, deque[float]] = {}  # seconds of steps alone
        self._left, self._wait = 0, WAIT  # steps alone until sharing is tried again: of now, and of the next time
        self._was_alone = False

    @property
    def alone(self) -> bool:
        """Whether rank 0 should decode a call alone that begins now."""
        return self._left > 0

    def begin(self, alone: bool) -> None:
        """A call begins, as rank 0 has decided; what sharing takes is measured anew after calls of rank 0 alone."""
        if self._was_alone and not alone:
            self.kinds.clear()
            self._visits.clear()
            self._shared = 0
        self._was_alone = alone

    def kind(self, tokens: int, rows: int) -> Kind:
        """That of a step which several ranks may share."""
        key = key_of(tokens, rows)
        self._visits[key] += 1
        return self.kinds.setdefault(key, Kind())

    def step_alone(self, tokens: int, rows: int, seconds: float) -> None:
        """A step without an exchange."""
        self._left = max(0, self._left - 1)
        if tokens > rows:
            self._lone.setdefault(key_of(tokens, rows), deque(maxlen=LAST)).append(seconds)

    def leaves(self) -> bool:
        """A shared step has ended. Returns whether rank 0 goes on alone, to the end of the call."""
        self._shared += 1
        if self._shared % ENOUGH:
            return False
        worth = self._worth()
        if worth is None:
            return False
        if worth:
            self._wait = WAIT
            return False
        self._left, self._wait = self._wait, min(2 * self._wait, LONGEST)
        return True

    def left(self) -> None:
        """Rank 0 goes on alone, as it has told all ranks."""
        self._was_alone = True

    def _worth(self) -> bool | None:
        """Whether sharing saves enough time; `None` if that is not known yet."""
        alone, shared, timed = 0.0, 0.0, True
        for key, visits in self._visits.items():
            ranks, lone = self.kinds[key].ranks, self._lone.get(key, ())
            if all(map(ranks.known, self.numbers)):
                timed = timed and len(lone) >= FIRST
                alone += visits * min(ranks.median(1), median(lone) if len(lone) >= FIRST else float("inf"))
                shared += visits * min(map(ranks.median, self.numbers))
        if self._visits and not alone:
            return None
        return shared < (1 - (GAIN if timed else UNSURE)) * alone
