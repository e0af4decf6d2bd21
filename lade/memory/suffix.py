"""Longest suffix of a text that occurred before, and what followed it: in the request's own text or in a reference.

All matches come from an online suffix automaton: amortised O(1) per token, whatever the length of the text.
Pure Python; knows tokens, no trees, no requests and no model.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class MatchPolicy:
    """What counts as a match. Chosen for the fewest steps with stories3M on the first 16 story prompts.

    Attributes:
        updated: states per token, longest first, whose last occurrence is updated; on real texts as good as all.
        anchor: length of a match in a reference that fixes the position; a shorter one may be a phrase that recurs.
        candidates: occurrences of a token after the last anchor that are compared with the match.
        shortest: least length of a match in the own text that is drafted from.
        beginning: tokens that a match counts more for as long as all output is the beginning of the reference.
    """

    updated: int = 4
    anchor: int = 8
    candidates: int = 8
    shortest: int = 2
    beginning: int = 8


MATCHING = MatchPolicy()


class Cursor(NamedTuple):
    """A match. One of an `OwnText` or an automaton is valid until that text grows.

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

    A state is a set of substrings that end at the same positions; its suffix link leads to the longest suffix of them
    that ends at more positions.
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
        for _ in range(MATCHING.updated):
            if state <= 0:
                break
            ends[state] = end
            state = links[state]

    def _exact(self, state: int, token: int) -> int:
        """The state whose longest string is that of `state` and `token`; split off from a longer one if needed."""
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
        """Append tokens; cursors from before are invalid."""
        self._automaton.extend(tokens)
        self.cursor = self._automaton.repeated()

    def at(self, index: int) -> int:
        """The token there; past the end, the text repeats what followed the cursor.

        Args:
            index: at least the cursor's end; the cursor must be a match.
        """
        text = self._automaton.text
        behind = index - len(text)
        return text[index] if behind < 0 else text[self.cursor.end + behind % (len(text) - self.cursor.end)]


class ReferenceText:
    """A fixed text that the output may repeat: a predicted output, the old version of a file that is being edited.

    Of several occurrences, the one is used that continues the current position. After a divergence it is the first one
    after the last anchor (`MatchPolicy.anchor`), which skips insertions, deletions and replacements.

    Attributes:
        cursor: the longest suffix of the output that occurs in the reference; before any output, its beginning.
        begun: `MatchPolicy.beginning` as long as all output is the beginning of the reference, then 0.
    """

    def __init__(self, tokens: Iterable[int]) -> None:
        self.text = list(tokens)
        self._automaton = SuffixAutomaton(self.text)
        self._occurrences: dict[int, list[int]] = {}  # token -> indices after it, ascending
        for index, token in enumerate(self.text):
            self._occurrences.setdefault(token, []).append(index + 1)
        self._anchor = 0  # where the last match of at least `anchor` tokens ended
        self.cursor = Cursor(0, 0, 0)
        self.begun = MATCHING.beginning

    def extend(self, tokens: Iterable[int]) -> None:
        """Follow the emitted tokens."""
        for token in tokens:
            expected = self.at(self.cursor.end) == token
            state, length, end = self._automaton.follow(self.cursor, token)
            if expected:
                end = self.cursor.end + 1
            else:
                self.begun = 0
                end = self._nearest(token, length, end) if length else end
            self.cursor = Cursor(state, length, end)
            if length >= MATCHING.anchor:
                self._anchor = end

    def at(self, index: int) -> int | None:
        """The token there; None before the beginning and past the end."""
        return self.text[index] if 0 <= index < len(self.text) else None

    def _nearest(self, token: int, length: int, end: int) -> int:
        """The end of the occurrence of a match to continue from: the first after the anchor, else the one at `end`.

        Only the last `MatchPolicy.anchor` tokens of the match are compared.
        """
        occurrences = self._occurrences[token]
        first = bisect_right(occurrences, self._anchor)
        known = min(length, MATCHING.anchor)
        tail = self.text[end - known : end]
        for other in occurrences[first : first + MATCHING.candidates]:
            if self.text[other - known : other] == tail:  # a slice from before the beginning is shorter than the tail
                return other
        return end
