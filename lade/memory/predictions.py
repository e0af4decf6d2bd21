"""Recycled predictions in arrays: the model's own top-k next tokens, stored by the last 4, 3, 2 and 1 tokens.

Every computed node gives a prediction, rejected ones too (Token Recycling, arXiv 2408.08696, which uses one token of
context). What is stored is a moving average: one token occurs in many places, so its newest prediction counts less than
that of several tokens. Requests that share a pool are told apart: what one predicted itself says more of its text than
what earlier ones left (`is_kept`).
"""

from __future__ import annotations

from dataclasses import dataclass

from lade.base.compiled import compiled
from lade.base.searching import equal_to, lowest_bit, prefetch
from lade.memory.context import CONTEXT, SHORT, shortened
from lade.memory.hashing import Array, context_slot, hashed, index_rows

TOP = 8  # predictions kept per context, and children weighed per node
# Fields of the header: BEGUN counts the requests that began; the young contexts of each length stand at YOUNG + length.
CONTEXTS, NUMBER, INDEX, SLOTS, BEGUN, YOUNG = range(6)
FIELDS = YOUNG + CONTEXT + 1
# Of a context, behind its four tokens; LEARNED is what BEGUN was when it was learned last.
AVERAGED, IS_YOUNG, LEARNED, TOKENS = range(CONTEXT, CONTEXT + 4)
WIDTH = TOKENS + TOP
MOST_COUNTED = 2**31 - 1  # predictions of one average, what its int32 holds


@dataclass(frozen=True, slots=True)
class RecyclingPolicy:
    """How predictions are averaged: the least weight of the newest one in a moving average.

    Attributes:
        newest: after one token. Chosen for the fewest steps with stories3M on the first 16 story prompts.
        newest_of_several: after several. Chosen on replays (`benchmarks/replay.py`) of SmolLM2-135M-Instruct on 32
            prompts of the half to tune on, with pools that are new and kept, at 16, 32 and 64 nodes.
    """

    newest: float = 0.3
    newest_of_several: float = 0.85


RECYCLING = RecyclingPolicy()
NEWEST, NEWEST_OF_SEVERAL = RECYCLING.newest, RECYCLING.newest_of_several


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
    first, second, third = shortened(a, b, c, length)
    return pool[context_slot(pool, pool[INDEX], pool[SLOTS], pool[CONTEXTS], WIDTH, first, second, third, d)]


@compiled
def is_kept(pool: Array, row: int, begun: int) -> bool:
    """Whether a context was not learned since a request began, the pool's `begun`-th."""
    return row >= 0 and pool[pool[CONTEXTS] + row * WIDTH + LEARNED] < begun


@compiled
def prefetch_slots(pool: Array, a: int, b: int, c: int, d: int) -> None:
    """Ask the memory for where `learn_prediction` will look up a context.

    Since the last step a forward has read all weights, so that the tables are not in the processor's caches, and each
    first read waits some hundred nanoseconds.
    """
    for length in range(1, CONTEXT + 1):
        prefetch(pool, first_slot(pool, a, b, c, d, length))


@compiled
def prefetch_rows(pool: Array, masses: Array, a: int, b: int, c: int, d: int) -> None:
    """Ask, after `prefetch_slots`, for the rows to which these slots lead."""
    for length in range(1, CONTEXT + 1):
        row = pool[first_slot(pool, a, b, c, d, length)]
        if row >= 0:
            prefetch(pool, pool[CONTEXTS] + row * WIDTH)
            prefetch(masses, row * TOP)


@compiled
def first_slot(pool: Array, a: int, b: int, c: int, d: int, length: int) -> int:
    """The slot where the search for the last tokens of a context begins."""
    a, b, c = shortened(a, b, c, length)
    return pool[INDEX] + (hashed(a, b, c, d) & (pool[SLOTS] - 1))


@compiled
def learn_prediction(
    pool: Array, masses: Array, a: int, b: int, c: int, d: int, tokens: Array, probabilities: Array, line: int, top: int
) -> None:
    """Store what a line of top-k predictions says of a context; there must be room for `CONTEXT` more.

    Args:
        masses: the probabilities of the pool, `TOP` per row.
        tokens, probabilities: the lines, `top` each behind one another.
    """
    for length in range(CONTEXT, 0, -1):
        row, newest = young_row(pool, a, b, c, d, length), NEWEST if length == 1 else NEWEST_OF_SEVERAL
        average(pool, masses, row, newest, tokens, probabilities, line, top)


@compiled
def young_row(pool: Array, a: int, b: int, c: int, d: int, length: int) -> int:
    """The row of the last tokens of a context, now learned and of the young generation; without tokens if it is new."""
    a, b, c = shortened(a, b, c, length)
    slot = context_slot(pool, pool[INDEX], pool[SLOTS], pool[CONTEXTS], WIDTH, a, b, c, d)
    row = pool[slot]
    at = pool[CONTEXTS] + row * WIDTH
    if row < 0:
        row = pool[NUMBER]
        pool[NUMBER], pool[slot] = row + 1, row
        at = pool[CONTEXTS] + row * WIDTH
        pool[at], pool[at + 1], pool[at + 2], pool[at + 3] = a, b, c, d
        pool[at + AVERAGED], pool[at + IS_YOUNG], pool[at + TOKENS] = 0, 0, -1
    pool[at + LEARNED] = pool[BEGUN]
    if not pool[at + IS_YOUNG]:
        pool[at + IS_YOUNG] = 1
        pool[YOUNG + length] += 1
    return row


@compiled
def average(
    pool: Array, masses: Array, row: int, newest: float, tokens: Array, probabilities: Array, line: int, top: int
) -> None:
    """Mix a prediction into the moving average of a row, in which it has this weight at least."""
    at, mass = pool[CONTEXTS] + row * WIDTH, row * TOP
    count = min(pool[at + AVERAGED], MOST_COUNTED - 1) + 1
    pool[at + AVERAGED] = count
    at += TOKENS
    if count == 1:
        write_first(pool, at, masses, mass, tokens, probabilities, line, top)
        return
    share, known = max(newest, 1.0 / count), 0
    for rank in range(TOP):
        masses[mass + rank] *= 1.0 - share
    for rank in range(top):  # first those that it has: a new one may drop the last
        token, own = tokens[line * top + rank], share * probabilities[line * top + rank]
        place = place_of(pool, at, token)
        if place < TOP:
            known |= 1 << rank
            put(pool, at, masses, mass, place, token, masses[mass + place] + own)
    for rank in range(top):
        token, own = tokens[line * top + rank], share * probabilities[line * top + rank]
        if not known >> rank & 1 and (pool[at + TOP - 1] < 0 or own > masses[mass + TOP - 1]):
            put(pool, at, masses, mass, TOP - 1, token, own)


@compiled
def write_first(
    pool: Array, at: int, masses: Array, mass: int, tokens: Array, probabilities: Array, line: int, top: int
) -> None:
    """Write the first prediction of a row, whose tokens begin at `at`, and their probabilities at `mass`."""
    for rank in range(top):
        pool[at + rank], masses[mass + rank] = tokens[line * top + rank], probabilities[line * top + rank]
    for rank in range(top, TOP):
        pool[at + rank], masses[mass + rank] = -1, 0.0


@compiled
def place_of(pool: Array, at: int, token: int) -> int:
    """The rank of a token among those from `at` on; `TOP` if it is not there."""
    bits = equal_to(pool, at, token, TOP)
    return lowest_bit(bits) if bits else TOP


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
