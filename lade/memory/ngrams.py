"""The pool of n-grams that the window has seen: the first token is the key, the other N-1 are a guess.

Bounded per key; the least recently seen guess is dropped first. Pure Python; knows nothing about trees or models.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence


class NgramPool:
    """n-grams by first token (arXiv 2402.02057, section 3.2).

    Args:
        ngram: N, tokens of an n-gram, key included.
        guesses: G, guesses kept per key; -1 keeps all.
    """

    def __init__(self, ngram: int, guesses: int) -> None:
        self.ngram = ngram
        self.guesses = guesses
        self._values: dict[int, dict[tuple[int, ...], None]] = {}

    def add(self, gram: Sequence[int]) -> None:
        """Add one n-gram as the most recently seen of its key."""
        key, value = gram[0], tuple(gram[1:])
        values = self._values.setdefault(key, {})
        values.pop(value, None)
        values[value] = None
        if 0 <= self.guesses < len(values):
            del values[next(iter(values))]

    def add_text(self, tokens: Sequence[int], start: int = 0) -> None:
        """Add every n-gram of a text that ends at or after index `start`."""
        for first in range(max(0, start - self.ngram + 1), len(tokens) - self.ngram + 1):
            self.add(tokens[first : first + self.ngram])

    def lookup(self, key: int) -> Iterator[tuple[int, ...]]:
        """The guesses of a key, the most recently seen first."""
        return reversed(self._values.get(key, {}))

    def following(self, context: Sequence[int]) -> tuple[list[int], int]:
        """The tokens that followed the longest suffix of a context that starts a known n-gram, and its length.

        Tokens are distinct, the most recently seen first; none and 0 where nothing matches.
        """
        for length in range(min(len(context), self.ngram - 1), 0, -1):
            known = self._values.get(context[-length])
            if known is None:
                continue
            rest = tuple(context[len(context) - length + 1 :])
            tokens = [value[length - 1] for value in reversed(known) if value[: length - 1] == rest]
            if tokens:
                return list(dict.fromkeys(tokens)), length
        return [], 0

    def __len__(self) -> int:
        return sum(map(len, self._values.values()))
