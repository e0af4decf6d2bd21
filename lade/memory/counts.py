"""What followed the last tokens earlier in the text: counts by context, the longest known context first.

This is prediction by partial matching (Cleary and Witten 1984) over prompt and output. It tells what may follow where
the model has not predicted yet, above all after tokens of the prompt. Pure Python; knows no tree and no model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lade.memory.recycle import LENGTHS, NOTHING, TOP, Context, Entry


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


class FollowerCounts:
    """Counts of the tokens that followed the contexts in a text.

    Args:
        tokens: the text so far.
    """

    def __init__(self, tokens: Sequence[int] = ()) -> None:
        self._counts: dict[tuple[int, ...], dict[int, int]] = {}  # the token that was counted last stands last
        self._entries: dict[tuple[int, ...], Entry] = {}
        self._context: Context = (NOTHING, NOTHING, NOTHING, NOTHING)
        self.extend(tokens[-COUNTING.places :])

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens."""
        context = self._context
        for token in tokens:
            for length in LENGTHS:
                key = context[-length:]
                followers = self._counts.setdefault(key, {})
                followers[token] = followers.pop(token, 0) + 1
                self._entries.pop(key, None)
            context = (context[1], context[2], context[3], token)
        self._context = context

    def entry(self, context: Context, lengths: Sequence[int] = LENGTHS) -> tuple[int, Entry]:
        """The length of the longest context that occurred, 0 if none did, and the tokens that followed with their
        probabilities, the most frequent first, of equal ones the latest; not to be changed.

        Args:
            lengths: of the contexts that are looked up, longest first, among `LENGTHS`.
        """
        for length in lengths:
            key = context[-length:]
            if key in self._counts:
                return length, self._entries.get(key) or self._ranked(key)
        return 0, ([], [])

    def _ranked(self, key: tuple[int, ...]) -> Entry:
        followers = self._counts[key]
        total = sum(followers.values()) + COUNTING.escape
        latest = list(reversed(followers))
        best = sorted(latest, key=followers.__getitem__, reverse=True)[:TOP]
        entry = self._entries[key] = best, [followers[token] / total for token in best]
        return entry
