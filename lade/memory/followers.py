"""What followed a context, in an array: the followers of each context are a list, the likeliest first.

The likeliest is the most frequent, of equals the latest; or, by recency, the latest.
"""

from __future__ import annotations

from lade.base.compiled import compiled
from lade.memory.context import CONTEXT, shortened
from lade.memory.hashing import Array, context_slot

# Fields, from their place in the header on.
CONTEXTS, CONTEXT_NUMBER, FOLLOWERS, FOLLOWER_NUMBER, INDEX, SLOTS = range(6)
FIELDS = 6
TOTAL, HEAD = CONTEXT, CONTEXT + 1  # of a context: occurrences, its first follower
WIDTH = CONTEXT + 2
TOKEN, COUNT, NEXT = range(3)  # of a follower: the token, how often, the next one
FOLLOWER_WIDTH = 3


@compiled
def add_follower(ints: Array, own: int, a: int, b: int, c: int, d: int, token: int, by_recency: bool) -> None:
    """One more occurrence of a token after a context; there must be room.

    Args:
        own: where the fields begin.
    """
    followers, row = ints[own + FOLLOWERS], context_row(ints, own, a, b, c, d)
    ints[row + TOTAL] += 1
    link = row + HEAD  # the place that holds the number of the follower at hand
    while ints[link] >= 0 and ints[followers + ints[link] * FOLLOWER_WIDTH + TOKEN] != token:
        link = followers + ints[link] * FOLLOWER_WIDTH + NEXT
    follower = ints[link]
    at = followers + follower * FOLLOWER_WIDTH
    if follower >= 0:
        ints[link] = ints[at + NEXT]
    else:
        follower = ints[own + FOLLOWER_NUMBER]
        ints[own + FOLLOWER_NUMBER] = follower + 1
        at = followers + follower * FOLLOWER_WIDTH
        ints[at + TOKEN], ints[at + COUNT] = token, 0
    ints[at + COUNT] += 1
    link, most = row + HEAD, ints[at + COUNT]
    while not by_recency and ints[link] >= 0 and ints[followers + ints[link] * FOLLOWER_WIDTH + COUNT] > most:
        link = followers + ints[link] * FOLLOWER_WIDTH + NEXT
    ints[at + NEXT] = ints[link]
    ints[link] = follower


@compiled
def context_row(ints: Array, own: int, a: int, b: int, c: int, d: int) -> int:
    """Where the row of a context begins; it is added if it is new."""
    rows = ints[own + CONTEXTS]
    slot = context_slot(ints, ints[own + INDEX], ints[own + SLOTS], rows, WIDTH, a, b, c, d)
    if ints[slot] >= 0:
        return rows + ints[slot] * WIDTH
    number = ints[own + CONTEXT_NUMBER]
    ints[own + CONTEXT_NUMBER] = number + 1
    ints[slot] = number
    row = rows + number * WIDTH
    ints[row], ints[row + 1], ints[row + 2], ints[row + 3] = a, b, c, d
    ints[row + TOTAL], ints[row + HEAD] = 0, -1
    return row


@compiled
def find_followers(
    ints: Array, own: int, a: int, b: int, c: int, d: int, shortest: int, longest: int
) -> tuple[int, int]:
    """The longest suffix of a context that is known, of `shortest` to `longest` tokens.

    Returns:
        Where its row begins, and its length; -1 and 0 if there is none.
    """
    rows = ints[own + CONTEXTS]
    if ints[own + CONTEXT_NUMBER] > 0:
        for length in range(longest, shortest - 1, -1):
            first, second, third = shortened(a, b, c, length)
            slot = context_slot(ints, ints[own + INDEX], ints[own + SLOTS], rows, WIDTH, first, second, third, d)
            if ints[slot] >= 0:
                return rows + ints[slot] * WIDTH, length
    return -1, 0


@compiled
def find_contexts(ints: Array, own: int, a: int, b: int, c: int, d: int, found: Array, to: int) -> None:
    """Where the rows of a context's last one to four tokens begin; -1 where there is none.

    For tables in which every suffix of a known context is known.

    Args:
        found: takes them, from its place `to` on.
    """
    rows = ints[own + CONTEXTS]
    for place in range(to, to + CONTEXT):
        found[place] = -1
    if ints[own + CONTEXT_NUMBER] == 0:
        return
    for length in range(1, CONTEXT + 1):
        first, second, third = shortened(a, b, c, length)
        slot = context_slot(ints, ints[own + INDEX], ints[own + SLOTS], rows, WIDTH, first, second, third, d)
        if ints[slot] < 0:
            return
        found[to + length - 1] = rows + ints[slot] * WIDTH
