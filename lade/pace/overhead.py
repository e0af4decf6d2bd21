"""What a look for drafts takes, apart from the forward: drafting and learning, where they end in one token per row.

Drafting and learning a tree takes longer by its nodes, and that belongs to the cost of its size; what any look takes
does not, since it is spent before a size is chosen. Knows seconds only.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OverheadPolicy:
    """Learning rates of the moving averages, chosen without data.

    Attributes:
        falling: at which a shorter time is followed: of a look with fewer nodes, or that nothing disturbed.
        rising: at which a longer time is followed.
    """

    falling: float = 0.3
    rising: float = 0.05


OVERHEAD = OverheadPolicy()


class Overhead:
    """The time of looks in one call, and of steps of one token per row, by the number of rows."""

    def __init__(self, policy: OverheadPolicy = OVERHEAD) -> None:
        self._policy = policy
        self._looks: dict[int, float] = {}  # rows -> seconds
        self._plain: dict[int, float] = {}  # rows -> seconds
        self._last = 0.0  # ratio that was known

    def ratio(self, rows: int) -> float:
        """Of a look, over a step of one token per row without.

        Where it is not known it is the last one that was; 0 if none was.
        """
        look, plain = self._looks.get(rows), self._plain.get(rows)
        if look is not None and plain is not None:
            self._last = look / max(plain, 1e-9)
        return self._last

    def looked(self, rows: int, seconds: float) -> float:
        """A step took so long for drafting and learning. Returns what of this any look takes."""
        self._looks[rows] = look = self._followed(self._looks.get(rows, seconds), seconds)
        return min(seconds, look)

    def stepped(self, rows: int, seconds: float) -> None:
        """A step of one token per row took so long, without drafting and learning."""
        self._plain[rows] = self._followed(self._plain.get(rows, seconds), seconds)

    def _followed(self, known: float, seconds: float) -> float:
        rate = self._policy.falling if seconds < known else self._policy.rising
        return known + rate * (seconds - known)
