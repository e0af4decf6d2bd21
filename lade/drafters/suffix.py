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


class SuffixAutomaton:
    """Online suffix automaton (Blumer et al. 1985) of one token text: at most 2 states and 3 transitions per token.

    A state stands for the substrings that end at the same places; its link leads to the longest suffix of them that
    ends at more places. What can follow a state can also follow its link, so the longest suffix that a token can follow
    is found by jump pointers (Myers 1983), in about as many hops as the text's length has bits: chains of links are as
    long as the text where it is `a a a a ...`, and no amortisation pays for the hypothetical tokens that walk them.
    """

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self.text: list[int] = []
        self._last = 0
        # By state; state 0 is the root, the empty string, whose end is never read.
        self._next: list[dict[int, int]] = [{}]
        self._links, self._lengths, self._ends = [-1], [0], [-1]
        self._jumps, self._spans = [0], [0]  # an ancestor further up, and how many links up it was when the state came
        self.extend(tokens)

    def __len__(self) -> int:
        """States."""
        return len(self._links)

    def extend(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            self._append(token)

    def root(self) -> Cursor:
        """The empty match."""
        return Cursor(0, 0, -1)

    def repeated(self) -> Cursor:
        """The longest suffix of the text that also occurs earlier in it."""
        state = self._links[self._last]
        return Cursor(state, self._lengths[state], self._ends[state]) if state > 0 else self.root()

    def follow(self, cursor: Cursor, token: int) -> Cursor:
        """The longest suffix of the matched tokens and `token` that occurs in the text."""
        state, length, _ = cursor
        target = self._next[state].get(token, 0)
        if not target:
            state = self._shortened(state, token)
            target, length = self._next[state].get(token, 0), self._lengths[state]
            if not target:
                return Cursor(0, 0, -1)
        return Cursor(target, length + 1, self._ends[target])

    def next_token(self, cursor: Cursor) -> int | None:
        """What followed the match where it last occurred; None for the empty match and where nothing ever followed."""
        return self.text[cursor.end] if -1 < cursor.end < len(self.text) else None

    def only_at_end(self, cursor: Cursor) -> bool:
        """Whether the match is a suffix of the text that occurs nowhere else in it."""
        return cursor.state == self._last

    def _shortened(self, state: int, token: int) -> int:
        """The first state up the links that `token` can follow, else the root."""
        following, links, jumps = self._next, self._links, self._jumps
        while state and token not in following[state]:
            far = jumps[state]
            state = links[state] if token in following[far] else far
        return state

    def _append(self, token: int) -> None:
        following, links, ends = self._next, self._links, self._ends
        end = len(self.text)
        self.text.append(token)
        state, self._last = self._last, self._add_state({}, end + 1, end + 1)
        while state >= 0 and token not in following[state]:
            following[state][token] = self._last
            ends[state] = end
            state = links[state]
        self._hang(self._last, self._exact(state, token) if state >= 0 else 0)
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
        split = self._add_state(following[target].copy(), length, self._ends[target])
        self._hang(split, links[target])
        links[target] = split
        while state >= 0 and following[state].get(token) == target:
            following[state][token] = split
            state = links[state]
        return split

    def _add_state(self, following: dict[int, int], length: int, end: int) -> int:
        self._next.append(following)
        self._lengths.append(length)
        self._ends.append(end)
        self._links.append(0)
        self._jumps.append(0)
        self._spans.append(0)
        return len(self._links) - 1

    def _hang(self, state: int, link: int) -> None:
        """Link a state, and give it its jump. States that get in between later make jumps uneven, but never wrong."""
        spans, far = self._spans, self._jumps[link]
        even = spans[link] == spans[far]
        self._links[state] = link
        self._jumps[state] = self._jumps[far] if even else link
        spans[state] = 1 + spans[link] + spans[far] if even else 1


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
        """The token there; behind the end the text is taken to repeat what followed the cursor, again and again."""
        text = self._automaton.text
        return text[index] if index < len(text) else text[self.cursor.end + (index - len(text)) % (len(text) - self.cursor.end)]


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
            self.cursor = self.follow(self.cursor, token)
            if self.cursor.length >= SURE:
                self._sure = self.cursor.end

    def follow(self, cursor: Cursor, token: int) -> Cursor:
        """The longest suffix of the matched tokens and `token` that occurs in the reference."""
        state, length, end = self._automaton.follow(cursor, token)
        if self._automaton.next_token(cursor) == token:
            end = cursor.end + 1
        elif length:
            end = self._nearest(token, length, end, cursor.end if cursor.length >= SURE else self._sure)
        return Cursor(state, length, end)

    def at(self, index: int) -> int | None:
        """The token there; None behind the end."""
        return self.text[index] if index < len(self.text) else None

    def _nearest(self, token: int, length: int, end: int, sure: int) -> int:
        """Behind which occurrence of a match to go on: the first one after `sure`, else the one that ends before `end`.

        Only the last SURE tokens of the match are compared.
        """
        occurrences = self._occurrences[token]
        first = bisect_right(occurrences, sure)
        known = min(length, SURE)
        tail = self.text[end - known : end]
        for other in occurrences[first : first + TRIED]:
            if self.text[other - known : other] == tail:  # a slice from before the beginning is shorter than the tail
                return other
        return end
