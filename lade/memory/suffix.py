"""Where the end of a text occurred before, and what followed: in the request's own text, or in a reference text.

All matches come from an online suffix automaton: amortised O(1) per token, whatever the length of the text.
Pure Python; knows tokens, no trees, no requests and no model.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

RENEWED = 4  # states per token, longest first, whose last occurrence is renewed: on real texts as good as all of them
SURE = 8  # tokens in a row that show where in a reference the output is, and not just that a phrase recurs
TRIED = 8  # occurrences of a token that are looked at for the one nearest to the last sure place


class Cursor(NamedTuple):
    """A match. One of an `OwnText` or an automaton is good until that text grows.

    Attributes:
        state: of the automaton.
        length: tokens matched.
        end: index in the text of the token that follows the match; -1 for the empty match, which is everywhere.
    """

    state: int
    length: int
    end: int


NOWHERE = Cursor(0, 0, -1)


class SuffixAutomaton:
    """Online suffix automaton (Blumer et al. 1985) of one token text: at most 2 states and 3 transitions per token.

    A state stands for the substrings that end at the same places; its link leads to the longest suffix of them that
    ends at more places.
    """

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self.text: list[int] = []
        self._last = 0
        # By state; state 0 is the root, the empty string, whose end is never read.
        self._next: list[dict[int, int]] = [{}]
        self._links, self._lengths, self._ends = [-1], [0], [-1]
        self.extend(tokens)

    def __len__(self) -> int:
        """States."""
        return len(self._links)

    def extend(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            self._append(token)

    def repeated(self) -> Cursor:
        """The longest suffix of the text that also occurs earlier in it."""
        state = self._links[self._last]
        return Cursor(state, self._lengths[state], self._ends[state]) if state > 0 else NOWHERE

    def follow(self, cursor: Cursor, token: int) -> Cursor:
        """The longest suffix of the matched tokens and `token` that occurs in the text.

        Amortised O(1) along a stream; O(length of the match) where every token is asked of the same match.
        """
        state, length, _ = cursor
        following = self._next
        while state >= 0 and token not in following[state]:
            state = self._links[state]
            length = self._lengths[state]
        if state < 0:
            return NOWHERE
        target = following[state][token]
        return Cursor(target, length + 1, self._ends[target])

    def _append(self, token: int) -> None:
        following, links, ends = self._next, self._links, self._ends
        end = len(self.text)
        self.text.append(token)
        state, self._last = self._last, self._add_state({}, end + 1, end + 1)
        while state >= 0 and token not in following[state]:
            following[state][token] = self._last
            ends[state] = end
            state = links[state]
        links[self._last] = self._exact(state, token) if state >= 0 else 0
        for _ in range(RENEWED):
            if state <= 0:
                break
            ends[state] = end
            state = links[state]

    def _exact(self, state: int, token: int) -> int:
        """The state whose longest string is that of `state` and `token`: split off from a longer one where need be."""
        following, links = self._next, self._links
        target, length = following[state][token], self._lengths[state] + 1
        if self._lengths[target] == length:
            return target
        split = self._add_state(following[target].copy(), length, self._ends[target], links[target])
        links[target] = split
        while state >= 0 and following[state].get(token) == target:
            following[state][token] = split
            state = links[state]
        return split

    def _add_state(self, following: dict[int, int], length: int, end: int, link: int = 0) -> int:
        self._next.append(following)
        self._lengths.append(length)
        self._ends.append(end)
        self._links.append(link)
        return len(self._links) - 1


class OwnText:
    """Prompt and output of one request: matches of its end with something earlier in it.

    Attributes:
        cursor: the longest suffix of the text that also occurs earlier in it.
    """

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self._automaton = SuffixAutomaton()
        self.extend(tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """Take in what the request goes on with; cursors from before are void."""
        self._automaton.extend(tokens)
        self.cursor = self._automaton.repeated()

    def at(self, index: int) -> int:
        """The token there; behind the end the text is taken to repeat what followed the cursor, again and again.

        Args:
            index: not before the cursor's end, which must be one.
        """
        text = self._automaton.text
        behind = index - len(text)
        return text[index] if behind < 0 else text[self.cursor.end + behind % (len(text) - self.cursor.end)]


class ReferenceText:
    """A fixed text that the output may repeat: a predicted output, the old version of a file that is being edited.

    Of several places that match, the one is taken where the output already is; after a divergence it is the first one
    behind the last sure place, so that what was inserted, deleted or replaced is passed over.

    Attributes:
        cursor: the longest suffix of the output that occurs in the reference; before any output, its beginning.
    """

    def __init__(self, tokens: Iterable[int]) -> None:
        self.text = list(tokens)
        self._automaton = SuffixAutomaton(self.text)
        self._occurrences: dict[int, list[int]] = {}  # token -> the indices behind it, ascending
        for index, token in enumerate(self.text):
            self._occurrences.setdefault(token, []).append(index + 1)
        self._sure = 0  # where the last match of SURE tokens ended
        self.cursor = Cursor(0, 0, 0)

    def extend(self, tokens: Iterable[int]) -> None:
        """Take in what was emitted."""
        for token in tokens:
            expected = self.at(self.cursor.end) == token
            state, length, end = self._automaton.follow(self.cursor, token)
            if expected:
                end = self.cursor.end + 1
            elif length:
                end = self._nearest(token, length, end)
            self.cursor = Cursor(state, length, end)
            if length >= SURE:
                self._sure = end

    def at(self, index: int) -> int | None:
        """The token there; None before the beginning and behind the end."""
        return self.text[index] if 0 <= index < len(self.text) else None

    def _nearest(self, token: int, length: int, end: int) -> int:
        """Behind which occurrence of a match to go on: the first one after a sure place, else the one before `end`.

        Only the last SURE tokens of the match are compared.
        """
        occurrences = self._occurrences[token]
        first = bisect_right(occurrences, self._sure)
        known = min(length, SURE)
        tail = self.text[end - known : end]
        for other in occurrences[first : first + TRIED]:
            if self.text[other - known : other] == tail:  # a slice from before the beginning is shorter than the tail
                return other
        return end
