"""Recycled predictions in arrays: the model's own top-k next tokens, stored by the last 4, 3, 2 and 1 tokens.

Every computed node gives a prediction, rejected ones too (Token Recycling, arXiv 2408.08696, which uses one token of
context). A context of several tokens keeps its newest prediction; one token occurs in many places, so its prediction is
a moving average.
"""

from __future__ import annotations

from dataclasses import dataclass

from lade.base.compiled import compiled
from lade.memory.context import CONTEXT, SHORT
from lade.memory.hashing import Array, context_slot, index_rows

TOP = 8  # predictions kept per context, and children weighed per node
# Fields of the header; the young contexts of each length stand at YOUNG + length.
CONTEXTS, NUMBER, INDEX, SLOTS, YOUNG = range(5)
FIELDS = YOUNG + CONTEXT + 1
AVERAGED, IS_YOUNG, TOKENS = CONTEXT, CONTEXT + 1, CONTEXT + 2  # of a context, behind its four tokens
WIDTH = CONTEXT + 2 + TOP
MOST_COUNTED = 2**31 - 1  # predictions of one average, what its int32 holds


@dataclass(frozen=True, slots=True)
class RecyclingPolicy:
    """How predictions are averaged. Chosen for the fewest steps with stories3M on the first 16 story prompts.

    Attributes:
        newest: least weight of the newest prediction in a moving average.
    """

    newest: float = 0.3


RECYCLING = RecyclingPolicy()
NEWEST = RECYCLING.newest


@compiled
def find_predictions(pool: Array, a: int, b: int, c: int, d: int, found: Array, to: int) -> None:
    """The rows of a context's last one to four tokens; -1 where there is none.

    Each length forgets by itself, so a context may be known without its end.

    Args:
        found: takes them, from its place `to` on.
    """
    for length in range(1, CONTEXT + 1):
        found[to + length - 1] = find_prediction(pool, a, b, c, d, length)


@compiled
def find_prediction(pool: Array, a: int, b: int, c: int, d: int, length: int) -> int:
    """The row of the last `length` tokens of a context; -1 if there is none."""
    first, second, third = a if length > 3 else SHORT, b if length > 2 else SHORT, c if length > 1 else SHORT
    return pool[context_slot(pool, pool[INDEX], pool[SLOTS], pool[CONTEXTS], WIDTH, first, second, third, d)]


@compiled
def learn_prediction(
    pool: Array, masses: Array, a: int, b: int, c: int, d: int, tokens: Array, probabilities: Array, line: int, top: int
) -> None:
    """Store what a line of top-k predictions says of a context; there must be room for `CONTEXT` more.

    Args:
        masses: the probabilities of the pool, `TOP` per row.
        tokens, probabilities: the lines, `top` each behind one another.
    """
    for length in range(CONTEXT, 1, -1):
        row = young_row(pool, a, b, c, d, length)
        at = pool[CONTEXTS] + row * WIDTH + TOKENS
        for rank in range(TOP):
            pool[at + rank] = tokens[line * top + rank] if rank < top else -1
            masses[row * TOP + rank] = probabilities[line * top + rank] if rank < top else 0.0
    row = young_row(pool, a, b, c, d, 1)
    average(pool, masses, row, tokens, probabilities, line, top)


@compiled
def young_row(pool: Array, a: int, b: int, c: int, d: int, length: int) -> int:
    """The row of the last tokens of a context, now of the young generation; one without tokens if it is new."""
    a, b, c = a if length > 3 else SHORT, b if length > 2 else SHORT, c if length > 1 else SHORT
    slot = context_slot(pool, pool[INDEX], pool[SLOTS], pool[CONTEXTS], WIDTH, a, b, c, d)
    row = pool[slot]
    at = pool[CONTEXTS] + row * WIDTH
    if row < 0:
        row = pool[NUMBER]
        pool[NUMBER], pool[slot] = row + 1, row
        at = pool[CONTEXTS] + row * WIDTH
        pool[at], pool[at + 1], pool[at + 2], pool[at + 3] = a, b, c, d
        pool[at + AVERAGED], pool[at + IS_YOUNG], pool[at + TOKENS] = 0, 0, -1
    if not pool[at + IS_YOUNG]:
        pool[at + IS_YOUNG] = 1
        pool[YOUNG + length] += 1
    return row


@compiled
def average(pool: Array, masses: Array, row: int, tokens: Array, probabilities: Array, line: int, top: int) -> None:
    """Mix a prediction into the moving average of a row."""
    at, mass = pool[CONTEXTS] + row * WIDTH, row * TOP
    count = min(pool[at + AVERAGED], MOST_COUNTED - 1) + 1
    pool[at + AVERAGED] = count
    at += TOKENS
    if count == 1:
        for rank in range(TOP):
            pool[at + rank], masses[mass + rank] = -1, 0.0
    share = max(NEWEST, 1.0 / count)
    for rank in range(TOP):
        masses[mass + rank] *= 1.0 - share
    for rank in range(line * top, line * top + top):  # first those that it has: a new one may drop the last
        place = place_of(pool, at, tokens[rank])
        if place < TOP:
            put(pool, at, masses, mass, place, tokens[rank], masses[mass + place] + share * probabilities[rank])
    for rank in range(line * top, line * top + top):
        new = share * probabilities[rank]
        if place_of(pool, at, tokens[rank]) == TOP and (pool[at + TOP - 1] < 0 or new > masses[mass + TOP - 1]):
            put(pool, at, masses, mass, TOP - 1, tokens[rank], new)


@compiled
def place_of(pool: Array, at: int, token: int) -> int:
    """The rank of a token among those from `at` on; `TOP` if it is not there."""
    place = 0
    while place < TOP and pool[at + place] != token:
        place += 1
    return place


@compiled
def put(pool: Array, at: int, masses: Array, mass: int, place: int, token: int, probability: float) -> None:
    """Write a token at a place of a row, and move it up to where it belongs."""
    while place > 0 and (pool[at + place - 1] < 0 or masses[mass + place - 1] < probability):
        pool[at + place], masses[mass + place] = pool[at + place - 1], masses[mass + place - 1]
        place -= 1
    pool[at + place], masses[mass + place] = token, probability


@compiled
def forget(pool: Array, masses: Array, capacity: int) -> None:
    """Where half of a length's room is young, drop its older contexts; what is young is old from then on.

    The half that was learned last is always kept.
    """
    for length in range(1, CONTEXT + 1):
        if 2 * pool[YOUNG + length] >= capacity:
            drop_old(pool, masses, length)


@compiled
def drop_old(pool: Array, masses: Array, length: int) -> None:
    """Drop the contexts of one length that are not young; the rows behind them move up."""
    rows, kept = pool[CONTEXTS], 0
    for row in range(pool[NUMBER]):
        at, to = rows + row * WIDTH, rows + kept * WIDTH
        own = length_of(pool, at) == length
        if own and not pool[at + IS_YOUNG]:
            continue
        for column in range(WIDTH):
            pool[to + column] = pool[at + column]
        for rank in range(TOP):
            masses[kept * TOP + rank] = masses[row * TOP + rank]
        if own:
            pool[to + IS_YOUNG] = 0
        kept += 1
    pool[NUMBER], pool[YOUNG + length] = kept, 0
    index_rows(pool, pool[INDEX], pool[SLOTS], rows, WIDTH, kept, False)


@compiled
def length_of(pool: Array, at: int) -> int:
    """Tokens of the context of the row that begins there."""
    length = CONTEXT
    while pool[at + CONTEXT - length] == SHORT:
        length -= 1
    return length
