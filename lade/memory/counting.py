"""What followed the last tokens of a text: how much of it is counted, and how."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CountPolicy:
    """How a text is counted.

    Attributes:
        places: tokens of the text that a request starts with, the last ones: a bound of its memory.
        escape: occurrences that a token which never followed the context counts for; 1 is method A of the paper. With
            less, stories3M takes more steps.
    """

    places: int = 1 << 14
    escape: float = 1.0


COUNTING = CountPolicy()
ESCAPE = COUNTING.escape
