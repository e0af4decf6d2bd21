"""Where the end of a text occurred earlier in it: its longest repeated suffix, also with one mismatch.

Answers often copy a passage with small changes: a source is quoted, code is edited. When a match ends, it is read on
behind the token that differs (string matching with k mismatches, Landau and Vishkin 1986, here with k = 1) until a
longer match is found.
"""

from __future__ import annotations

from dataclasses import dataclass

from lade.base.compiled import compiled
from lade.memory import automaton as automata
from lade.memory.automaton import MOVES, STATES, TO, at, find_move, repeated
from lade.memory.hashing import Array
from lade.memory.stages import MISMATCHES, match_bucket

# Of a match: the index of the token that follows it in the text (-1: there is no match), its length, and if one token
# differs the length before that token (else 0); the length then counts the tokens after it.
END, LENGTH, BEFORE = range(3)
FIELDS = 3


@dataclass(frozen=True, slots=True)
class RepeatPolicy:
    """What counts as a match. Chosen with SmolLM2-135M-Instruct on prompts of eight kinds (`benchmarks/replay.py`).

    Attributes:
        shortest: least length of a match, and of one that is read on behind a mismatch.
        long: length from which on a match is likelier to go on behind a mismatch.
    """

    shortest: int = 2
    long: int = 8


REPEATS = RepeatPolicy()
SHORTEST, LONG = REPEATS.shortest, REPEATS.long


@compiled
def set_match(ints: Array, match: int, end: int, length: int, before: int) -> None:
    ints[match + END], ints[match + LENGTH], ints[match + BEFORE] = end, length, before


@compiled
def expected(ints: Array, own: int, match: int) -> int:
    """The token that follows a match in the text whose fields begin at `own`; -1 if there is none."""
    end = ints[match + END]
    if end < 0 or (end >= ints[own + automata.TOKENS] and repeated(ints, own) <= 0):
        return -1
    return at(ints, own, end)


@compiled
def advance(ints: Array, own: int, match: int, token: int, to: int) -> None:
    """Follow a token that the text does not hold yet; the match afterwards is written to `to`."""
    end, length, before = ints[match + END], ints[match + LENGTH], ints[match + BEFORE]
    following = expected(ints, own, match)
    if following >= 0 and following == token:
        set_match(ints, to, end + 1, length + 1, before)
    elif following >= 0 and length >= SHORTEST:
        set_match(ints, to, end + 1, 0, max(length, before))
    else:
        set_match(ints, to, -1, 0, 0)


@compiled
def rematch(ints: Array, own: int, match: int) -> None:
    """Take the longest repeated suffix, unless a match with a mismatch goes on for as long."""
    state = repeated(ints, own)
    there = ints[own + STATES] + state * automata.WIDTH
    length = ints[there + automata.LENGTH] if state > 0 else 0
    if length >= SHORTEST and (ints[match + BEFORE] == 0 or length > ints[match + LENGTH]):
        set_match(ints, match, ints[there + automata.END], length, 0)


@compiled
def find_pair(ints: Array, own: int, first: int, second: int, match: int) -> None:
    """Take the last occurrence of two tokens, if there is one."""
    move = find_move(ints, own, 0, first)
    if move >= 0:
        move = find_move(ints, own, ints[ints[own + MOVES] + move * automata.WIDTH + TO], second)
    if move >= 0:
        state = ints[ints[own + MOVES] + move * automata.WIDTH + TO]
        set_match(ints, match, ints[ints[own + STATES] + state * automata.WIDTH + automata.END], 2, 0)


@compiled
def mismatch_bucket(length: int, before: int) -> int:
    """Which bucket a match with a mismatch belongs to: right behind it, after a short or a long match, or by length."""
    if length == 0:
        return 1 if before >= LONG else 0
    return 2 + min(match_bucket(length), MISMATCHES - 3)
