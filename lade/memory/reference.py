"""A fixed text that the output may repeat, in an array: a predicted output, the old version of a file that is edited.

Of several occurrences, the one is used that continues the current position. After a divergence it is the first one
after the last anchor, which skips insertions, deletions and replacements.
"""

from __future__ import annotations

from dataclasses import dataclass

from lade.base.compiled import compiled
from lade.memory import automaton as automata
from lade.memory.automaton import END, LENGTH, LINK, MOVES, STATES, TEXT, TO, TOKENS, WIDTH, find_move
from lade.memory.hashing import Array

# Fields behind those of the reference's automaton: where the indices of its tokens stand, by token, ascending for each;
# the state of the automaton, tokens matched, the index of the token that follows the match (-1 for the empty match,
# which is everywhere), where the last anchor ended, and `MatchPolicy.beginning` as long as all output is the beginning
# of the reference, then 0.
ORDER, STATE, MATCHED, NEXT, ANCHOR, BEGUN = range(automata.FIELDS, automata.FIELDS + 6)
FIELDS = automata.FIELDS + 6


@dataclass(frozen=True, slots=True)
class MatchPolicy:
    """What counts as a match. Chosen for the fewest steps with stories3M on the first 16 story prompts.

    `beginning` was 8 then; why it is more, `lade.drafters.blend.TreePolicy` says.

    Attributes:
        anchor: length of a match in a reference that fixes the position; a shorter one may be a phrase that recurs.
        candidates: occurrences of a token after the last anchor that are compared with the match.
        beginning: tokens that a match counts more for as long as all output is the beginning of the reference.
    """

    anchor: int = 8
    candidates: int = 8
    beginning: int = 32


MATCHING = MatchPolicy()
LEAST_ANCHOR, CANDIDATES, BEGINNING = MATCHING.anchor, MATCHING.candidates, MATCHING.beginning


@compiled
def follow_output(ints: Array, own: int, token: int) -> None:
    """Follow an emitted token in the reference whose fields begin at `own`."""
    states, end = ints[own + STATES], ints[own + NEXT]
    expected = 0 <= end < ints[own + TOKENS] and ints[ints[own + TEXT] + end] == token
    state, length = ints[own + STATE], ints[own + MATCHED]
    move = find_move(ints, own, state, token)
    while state >= 0 and move < 0:
        state = ints[states + state * WIDTH + LINK]
        if state >= 0:
            length = ints[states + state * WIDTH + LENGTH]
            move = find_move(ints, own, state, token)
    if state < 0:
        state, length, found = 0, 0, -1
    else:
        state = ints[ints[own + MOVES] + move * WIDTH + TO]
        length += 1
        found = ints[states + state * WIDTH + END]
    if expected:
        found = end + 1
    else:
        ints[own + BEGUN] = 0
        found = nearest(ints, own, token, length, found) if length else found
    ints[own + STATE], ints[own + MATCHED], ints[own + NEXT] = state, length, found
    if length >= LEAST_ANCHOR:
        ints[own + ANCHOR] = found


@compiled
def nearest(ints: Array, own: int, token: int, length: int, end: int) -> int:
    """The end of the occurrence of a match to continue from: the first after the anchor, else the one at `end`.

    Only the last tokens of the match are compared, as many as an anchor has.
    """
    text, order, tokens = ints[own + TEXT], ints[own + ORDER], ints[own + TOKENS]
    known = min(length, LEAST_ANCHOR)
    low = first_after(ints, own, token, ints[own + ANCHOR])
    for place in range(low, min(low + CANDIDATES, tokens)):
        other = ints[order + place] + 1
        if ints[text + other - 1] != token:
            break
        back = 1
        while back <= known and other - back >= 0 and ints[text + other - back] == ints[text + end - back]:
            back += 1
        if back > known:
            return other
    return end


@compiled
def first_after(ints: Array, own: int, token: int, anchor: int) -> int:
    """The place in the order of the token's first occurrence that ends after the anchor."""
    text, order = ints[own + TEXT], ints[own + ORDER]
    low, high = 0, ints[own + TOKENS]
    while low < high:
        middle = (low + high) // 2
        index = ints[order + middle]
        there = ints[text + index]
        if there < token or (there == token and index + 1 <= anchor):
            low = middle + 1
        else:
            high = middle
    return low
