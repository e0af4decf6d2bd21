"""Corpora (`lade.memory.corpus`) made of texts. Knows no file and no model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, islice

import numpy as np

from lade.base.compiled import Compiled
from lade.memory import automaton as automata
from lade.memory import corpus
from lade.memory.corpus import BETWEEN
from lade.memory.hashing import Array, slots_for
from lade.memory.regions import REINDEX, Regions
from lade.memory.texttables import READ, TextTables

WIDTH = automata.WIDTH
MOST = 10_000_000  # tokens of a corpus; to make one of so many takes about 2.3 GB

COUNT_STRINGS = Compiled(corpus.count_strings)


def corpus_of(texts: Iterable[Sequence[int]]) -> Array:
    """The corpus of some texts, lists of token ids.

    Raises:
        ValueError: they hold no token, or more than `MOST`.
    """
    given = chain.from_iterable((*text, BETWEEN) for text in texts if len(text))
    tokens = np.fromiter(islice(given, 2 * MOST + 1), np.int32)
    check_number(int((tokens != BETWEEN).sum()))
    regions = Regions(automata.FIELDS)
    TextTables(regions, 0).reserve(len(tokens))
    ints = regions.ints
    READ(ints, 0, tokens)
    states, moves = states_of(ints), moves_of(ints)
    COUNT_STRINGS(ints, np.argsort(-states[:, automata.LENGTH], kind="stable").astype(np.int32))
    return laid_out(states, _ordered(moves, states))


def check_number(tokens: int, least: int = 1) -> None:
    """ValueError where a corpus may not have so many tokens."""
    if not least <= tokens <= MOST:
        raise ValueError(f"texts must hold 1 to {MOST:,} tokens, got {tokens:,}")


def laid_out(states: np.ndarray, moves: np.ndarray, index: np.ndarray | None = None) -> Array:
    """The array.

    Args:
        states: [S, WIDTH] int32; their first moves are found here.
        moves: [M, WIDTH] int32, in their order.
        index: of the moves, which is made where it is `None`.
    """
    slots = slots_for(len(moves)) if index is None else len(index)
    ints = np.zeros(automata.FIELDS + states.size + moves.size + slots, np.int32)
    ints[automata.STATES], ints[automata.STATE_NUMBER] = automata.FIELDS, len(states)
    ints[automata.MOVES], ints[automata.MOVE_NUMBER] = automata.FIELDS + states.size, len(moves)
    ints[automata.INDEX], ints[automata.SLOTS] = len(ints) - slots, slots
    states_of(ints)[:], moves_of(ints)[:] = states, moves
    states_of(ints)[:, automata.FIRST] = np.searchsorted(moves[:, automata.FROM], np.arange(len(states)))
    if index is None:
        places = int(ints[automata.INDEX]), slots, int(ints[automata.MOVES])  # of one type in all calls
        REINDEX(ints, *places, WIDTH, len(moves), True)
    else:
        index_of(ints)[:] = index
    return ints


def states_of(ints: Array) -> np.ndarray:
    """[S, WIDTH] a view."""
    return _rows(ints, automata.STATES, automata.STATE_NUMBER)


def moves_of(ints: Array) -> np.ndarray:
    """[M, WIDTH] a view."""
    return _rows(ints, automata.MOVES, automata.MOVE_NUMBER)


def index_of(ints: Array) -> np.ndarray:
    """A view."""
    begin = int(ints[automata.INDEX])
    index: np.ndarray = ints[begin : begin + int(ints[automata.SLOTS])]
    return index


def _rows(ints: Array, place: int, number: int) -> np.ndarray:
    begin = int(ints[place])
    rows: np.ndarray = ints[begin : begin + int(ints[number]) * WIDTH].reshape(-1, WIDTH)
    return rows


def _ordered(moves: np.ndarray, states: np.ndarray) -> np.ndarray:
    """Moves by their state, the most frequent first and what lies between texts last, with how often each occurs."""
    times = states[moves[:, automata.TO], corpus.COUNT]
    order = np.lexsort((-times, moves[:, automata.TOKEN] == BETWEEN, moves[:, automata.FROM]))
    found: np.ndarray = moves[order]
    found[:, corpus.TIMES] = times[order]
    return found


NO_CORPUS = laid_out(np.array([[-1, 0, 0, 0]], np.int32), np.zeros((0, WIDTH), np.int32))
