"""What the model predicted for the next place of the text after other drafts of its last token.

Where every draft of a token was wrong, the model was asked what follows each of them, and often the same follows the
right one. A Jacobi iteration (arXiv 2402.02057) goes on from such predictions too.
"""

from __future__ import annotations

from lade.base.compiled import compiled
from lade.memory.hashing import Array
from lade.memory.predictions import TOP, place_of, put

# Of the integers: the length of the text that they go on from, then their tokens, likeliest first (-1: there are no
# further ones). Of the floats: the path probability of all siblings, then the sums of the tokens.
AT, TOKENS = 0, 1
TOTAL, SUMS = 0, 1
FIELDS = 1 + TOP


@compiled
def begin_siblings(ints: Array, floats: Array, own: int, of: int, length: int) -> None:
    """Begin with none, for a text of this length.

    Args:
        own, of: where the fields begin in the integers and in the floats.
    """
    ints[own + AT], floats[of + TOTAL] = length, 0.0
    for rank in range(TOP):
        ints[own + TOKENS + rank], floats[of + SUMS + rank] = -1, 0.0


@compiled
def add_sibling(
    ints: Array,
    floats: Array,
    own: int,
    of: int,
    weight: float,
    tokens: Array,
    probabilities: Array,
    line: int,
    top: int,
) -> None:
    """Add what follows a sibling of this path probability.

    Args:
        tokens, probabilities: lines of predictions, `top` each behind one another.
        line: its own.
    """
    at, sums = own + TOKENS, of + SUMS
    floats[of + TOTAL] += weight
    for rank in range(line * top, line * top + top):
        token, new = tokens[rank], weight * probabilities[rank]
        place = place_of(ints, at, token)
        if place < TOP:
            put(ints, at, floats, sums, place, token, floats[sums + place] + new)
        elif new > floats[sums + TOP - 1]:
            put(ints, at, floats, sums, TOP - 1, token, new)


@compiled
def of_siblings(ints: Array, floats: Array, own: int, of: int, length: int, tokens: Array, masses: Array) -> int:
    """What follows a text of this length: tokens, and their probabilities. Returns their number."""
    number = 0
    if ints[own + AT] == length:
        while number < TOP and ints[own + TOKENS + number] >= 0:
            tokens[number] = ints[own + TOKENS + number]
            masses[number] = floats[of + SUMS + number] / floats[of + TOTAL]
            number += 1
    return number
