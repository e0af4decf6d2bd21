"""Recent predictions without their contexts: a cache language model over what the model found likely in recent steps.

Words of a text come in clusters (cache language model, Kuhn and De Mori 1990), and what a wrong branch of a draft tree
predicts often comes a few tokens later. So these tokens fill a tree where no context is known yet.
"""

from __future__ import annotations

from dataclasses import dataclass

from lade.base.compiled import compiled
from lade.memory.hashing import Array


@dataclass(frozen=True, slots=True)
class RecencyPolicy:
    """How recent predictions are weighed. Chosen with SmolLM2-135M-Instruct on prompts of seven kinds.

    Attributes:
        decay: of a token's mass per step.
        kept: tokens that are remembered from step to step.
        offered: tokens that are predicted, at most.
    """

    decay: float = 0.7
    kept: int = 64
    offered: int = 16


RECENCY = RecencyPolicy()
DECAY, KEPT, OFFERED = RECENCY.decay, RECENCY.kept, RECENCY.offered


# Fields of a row: of its integers the number of tokens, then the tokens, likeliest first; of its floats the mass of all
# predictions, what they give to unknown tokens included, then the masses of the tokens.
NUMBER = TOTAL = 0
FIELDS = 1 + KEPT
# While a step's predictions are added up: the integers hold an index, then tokens in the order in which they came; the
# floats hold their masses.


def slots_for(predictions: int, top: int) -> int:
    """Slots of the index for so many predictions, a power of two."""
    slots = 256
    while slots < 2 * (KEPT + predictions * top):
        slots *= 2
    return slots


@compiled
def add_mass(sums: Array, masses: Array, slots: int, number: int, token: int, mass: float) -> int:
    """Add to a token's mass. Returns the number of tokens."""
    slot = token & (slots - 1)
    while sums[slot] >= 0 and sums[slots + sums[slot]] != token:
        slot = (slot + 1) & (slots - 1)
    if sums[slot] < 0:
        sums[slot] = number
        sums[slots + number], masses[number] = token, 0.0
        number += 1
    masses[sums[slot]] += mass
    return number


@compiled
def begin_sums(ints: Array, floats: Array, own: int, of: int, sums: Array, masses: Array, slots: int) -> int:
    """Begin with the tokens of recent steps. Returns their number.

    Args:
        own, of: where the fields begin in the integers and in the floats.
    """
    for slot in range(slots):
        sums[slot] = -1
    number = 0
    for place in range(ints[own + NUMBER]):
        number = add_mass(sums, masses, slots, number, ints[own + 1 + place], DECAY * floats[of + 1 + place])
    return number


@compiled
def keep_sums(
    ints: Array, floats: Array, own: int, of: int, sums: Array, masses: Array, slots: int, number: int, predictions: int
) -> None:
    """Keep the tokens of the largest sums of a step with so many predictions."""
    floats[of + TOTAL] = DECAY * floats[of + TOTAL] + predictions
    token, mass, kept = own + 1, of + 1, 0
    for each in range(number):
        if kept == KEPT and masses[each] <= floats[mass + KEPT - 1]:
            continue
        kept = min(kept + 1, KEPT)
        place = kept - 1
        while place > 0 and floats[mass + place - 1] < masses[each]:
            ints[token + place], floats[mass + place] = ints[token + place - 1], floats[mass + place - 1]
            place -= 1
        ints[token + place], floats[mass + place] = sums[slots + each], masses[each]
    ints[own + NUMBER] = kept
