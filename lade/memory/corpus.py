"""Fixed texts that outputs may repeat, in one array that requests share: a suffix automaton with counts.

Drafts from a corpus are those of REST (arXiv 2311.08252) and of the static automaton of SAM-Decoding
(arXiv 2411.10666): what followed the longest suffix of a path that occurs in the texts, and how often.

The array is an automaton (`lade.memory.automaton`) whose fields begin at 0, without its text. Moves of a state stand
side by side, the most frequent first.
"""

from __future__ import annotations

from dataclasses import dataclass

from lade.base.compiled import compiled
from lade.memory import automaton as automata
from lade.memory.automaton import (
    FIRST,
    FROM,
    LINK,
    MOVE_NUMBER,
    MOVES,
    STATES,
    TEXT,
    TO,
    TOKEN,
    TOKENS,
    WIDTH,
    find_move,
)
from lade.memory.hashing import Array
from lade.memory.predictions import TOP

BETWEEN = -1  # stands between two texts; no text matches it
COUNT = automata.END  # of a state: how often its strings occur
TIMES = automata.NEXT  # of a move: how often the strings that it leads to occur
# Of a match: the state of the longest suffix that occurs, and its length.
STATE, LENGTH = range(2)
FIELDS = 2


@dataclass(frozen=True, slots=True)
class CorpusPolicy:
    """How a corpus is searched.

    Attributes:
        often: occurrences from which on a suffix occurs often. What followed the longest one, which may have occurred
            once, says less than what followed a shorter one many times, so both predict.
        falls: suffix links that a search goes along, at most; behind them nothing is found. A bound of its time.
    """

    often: int = 4
    falls: int = 64


POLICY = CorpusPolicy()
OFTEN, FALLS = POLICY.often, POLICY.falls


@compiled
def read_on(corpus: Array, ints: Array, match: int, token: int, to: int) -> None:
    """Follow a token; the match afterwards is written to `to`."""
    states, state, length = corpus[STATES], ints[match + STATE], ints[match + LENGTH]
    move, falls = find_move(corpus, 0, state, token), 0
    while move < 0 and state > 0 and falls < FALLS:
        state = corpus[states + state * WIDTH + LINK]
        length = corpus[states + state * WIDTH + automata.LENGTH]
        move, falls = find_move(corpus, 0, state, token), falls + 1
    if move < 0:
        ints[to + STATE] = ints[to + LENGTH] = 0
    else:
        ints[to + STATE], ints[to + LENGTH] = corpus[corpus[MOVES] + move * WIDTH + TO], length + 1


@compiled
def following(corpus: Array, state: int, tokens: Array, masses: Array) -> int:
    """The tokens that follow the strings of a state most often, `TOP` at most, and their shares. Returns their number.

    Where texts end counts as well.
    """
    at = corpus[STATES] + state * WIDTH
    row, end = corpus[MOVES] + corpus[at + FIRST] * WIDTH, corpus[MOVES] + corpus[MOVE_NUMBER] * WIDTH
    number = 0
    while number < TOP and row < end and corpus[row + FROM] == state and corpus[row + TOKEN] != BETWEEN:
        tokens[number], masses[number] = corpus[row + TOKEN], corpus[row + TIMES] / corpus[at + COUNT]
        number, row = number + 1, row + WIDTH
    return number


@compiled
def occurrences(corpus: Array, state: int) -> int:
    """How often the strings of a state occur."""
    return corpus[corpus[STATES] + state * WIDTH + COUNT]


@compiled
def frequent(corpus: Array, state: int) -> int:
    """The state of the longest suffix of a state's strings that occurs often.

    There are few links to follow: every one leads to strings that occur more often.
    """
    while state > 0 and occurrences(corpus, state) < OFTEN:
        state = corpus[corpus[STATES] + state * WIDTH + LINK]
    return state


@compiled
def count_strings(ints: Array, longest_first: Array) -> None:
    """Count in each state of a text's automaton how often its strings occur.

    Args:
        longest_first: all states.
    """
    states, state = ints[STATES], 0
    for other in range(len(longest_first)):
        ints[states + other * WIDTH + COUNT] = 0
    for place in range(ints[TOKENS]):
        move = find_move(ints, 0, state, ints[ints[TEXT] + place])
        state = ints[ints[MOVES] + move * WIDTH + TO]
        ints[states + state * WIDTH + COUNT] = 1
    for place in range(len(longest_first)):
        at = states + longest_first[place] * WIDTH
        if ints[at + LINK] >= 0:
            ints[states + ints[at + LINK] * WIDTH + COUNT] += ints[at + COUNT]
