"""The nodes of a draft tree as places in texts: their last tokens, and where matches in a text go on."""

from __future__ import annotations

from lade.base.compiled import compiled
from lade.memory import automaton as automata
from lade.memory import corpus as corpora
from lade.memory import reference
from lade.memory.corpus import read_on
from lade.memory.hashing import Array
from lade.memory.matches import FIELDS, LENGTH, SHORTEST, advance, find_pair
from lade.memory.row import (
    CORPUS_MATCH,
    DEPTH,
    FIRST,
    IN_CORPUS,
    LAST,
    MASSES,
    MATCH,
    NODES,
    OWN,
    OWN_MATCH,
    PARENT,
    REFERENCE,
    REFERENCE_END,
    REFERENCE_LENGTH,
    STAGE,
    TOKEN,
    USES,
    WIDTH,
    Row,
    token_back,
)
from lade.memory.stages import CORPUS


@compiled
def root(row: Row) -> None:
    """Make the end of the text node 0."""
    ints = row.ints
    node = ints[NODES]
    ints[node + TOKEN], ints[node + PARENT], ints[node + DEPTH], ints[node + STAGE] = token_back(ints, 1), -1, 0, -1
    for back in range(4):
        ints[node + LAST - back] = token_back(ints, 1 + back)
    for field in range(FIELDS):
        ints[node + OWN_MATCH + field] = ints[MATCH + field]
    ints[node + REFERENCE_END] = ints[REFERENCE + reference.NEXT]
    ints[node + REFERENCE_LENGTH] = ints[REFERENCE + reference.MATCHED] + ints[REFERENCE + reference.BEGUN]
    for field in range(corpora.FIELDS):
        ints[node + CORPUS_MATCH + field] = ints[IN_CORPUS + field]
    row.floats[MASSES] = 1.0


@compiled
def follow(row: Row, number: int, parent: int, token: int) -> None:
    """Make a node the child of another. Its last two tokens are searched in its text where no longer match goes on."""
    ints = row.ints
    node, above = ints[NODES] + number * WIDTH, ints[NODES] + parent * WIDTH
    ints[node + TOKEN], ints[node + PARENT], ints[node + DEPTH] = token, parent, ints[above + DEPTH] + 1
    for column in range(FIRST, LAST):
        ints[node + column] = ints[above + column + 1]
    ints[node + LAST] = token
    advance(ints, OWN, above + OWN_MATCH, token, node + OWN_MATCH)
    if ints[node + OWN_MATCH + LENGTH] < SHORTEST:
        find_pair(ints, OWN, ints[above + LAST], token, node + OWN_MATCH)
    end = ints[above + REFERENCE_END]
    ints[node + REFERENCE_END] = end + 1 if end >= 0 and of_reference(ints, end) == token else -1
    ints[node + REFERENCE_LENGTH] = ints[above + REFERENCE_LENGTH] + 1
    if ints[USES + CORPUS]:
        read_on(row.corpus, ints, above + CORPUS_MATCH, token, node + CORPUS_MATCH)


@compiled
def of_reference(ints: Array, index: int) -> int:
    """The token of the reference there; -1 outside it."""
    inside = 0 <= index < ints[REFERENCE + automata.TOKENS]
    return ints[ints[REFERENCE + automata.TEXT] + index] if inside else -1
