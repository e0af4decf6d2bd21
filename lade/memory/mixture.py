"""What may come next at a node of a draft tree: the mixture of what all sources predict there.

A stick-breaking mixture: stages have a fixed order, the most specific first (`lade.memory.stages`), and each takes its
weight of the probability that the stages before it left. Weights are learned while decoding by online EM, one per stage
and bucket (length of the match, depth of the node). Sources that agree on a token add up.
"""

from __future__ import annotations

from dataclasses import dataclass

from lade.base.compiled import compiled
from lade.memory.evidence import (
    FIRST_STAGES,
    FOUND,
    FOUND_MASSES,
    SHARES,
    STAGE_BUCKETS,
    bucket_of,
    look_up,
    predicted,
)
from lade.memory.hashing import Array
from lade.memory.row import DEPTH, NODES, WIDTH, Row
from lade.memory.stages import BUCKETS, NUMBER


@dataclass(frozen=True, slots=True)
class CalibrationPolicy:
    """How weights are learned. Chosen for the fewest steps with stories3M on the first 16 story prompts.

    Attributes:
        escape: probability of a token that no stage predicts.
    """

    escape: float = 1e-3


CALIBRATION = CalibrationPolicy()
UNKNOWN = CALIBRATION.escape


@compiled
def expect(row: Row, number: int, floor: float, tokens: Array, masses: Array) -> int:
    """What may follow a node: tokens from `FOUND` on, their probabilities from `FOUND_MASSES` on.

    Args:
        floor: a stage's tokens of less probability than this are left out.
        tokens, masses: arrays to work in.

    Returns:
        Their number.
    """
    node = row.ints[NODES] + number * WIDTH
    left, found, depth = 1.0, 0, row.ints[node + DEPTH]
    look_up(row, node, tokens)
    for stage in range(NUMBER):
        offered, bucket = predicted(row, node, stage, tokens, masses)
        if offered == 0:
            continue
        share = left * row.weights[bucket_of(stage, depth, bucket)]
        left -= share
        for rank in range(offered):
            mass = share * masses[rank]
            if mass < floor:
                break
            place = 0
            while place < found and tokens[FOUND + place] != tokens[rank]:
                place += 1
            if place == found:
                tokens[FOUND + place], tokens[FIRST_STAGES + place] = tokens[rank], stage
                masses[FOUND_MASSES + place] = 0.0
                found += 1
            masses[FOUND_MASSES + place] += mass
        if left < floor:
            break
    return found


@compiled
def weigh(row: Row, number: int, choice: int, tokens: Array, masses: Array) -> None:
    """Update the weights with what the model chose after a node (expectation-maximisation)."""
    node, weights = row.ints[NODES] + number * WIDTH, row.weights
    look_up(row, node, tokens)
    for stage in range(NUMBER):
        offered, bucket = predicted(row, node, stage, tokens, masses)
        bucket = bucket_of(stage, row.ints[node + DEPTH], bucket) if offered else -1
        tokens[STAGE_BUCKETS + stage], masses[SHARES + stage] = bucket, 0.0
        for rank in range(offered):
            if tokens[rank] == choice:
                masses[SHARES + stage] = masses[rank]
                break
    posteriors(weights, tokens, masses)
    reached = 1.0
    for stage in range(NUMBER):
        bucket, share = tokens[STAGE_BUCKETS + stage], masses[SHARES + stage]
        if bucket >= 0:
            weights[BUCKETS + bucket] += reached
            weights[bucket] += (share - weights[bucket]) * reached / weights[BUCKETS + bucket]
            reached *= 1.0 - share


@compiled
def posteriors(weights: Array, tokens: Array, masses: Array) -> None:
    """From the probabilities that the stages gave to a choice to those that it came from each, if from none before."""
    behind = UNKNOWN
    for back in range(NUMBER):
        stage = NUMBER - 1 - back
        bucket = tokens[STAGE_BUCKETS + stage]
        if bucket >= 0:
            own = weights[bucket] * masses[SHARES + stage]
            behind = own + (1.0 - weights[bucket]) * behind
            masses[SHARES + stage] = own / behind if behind > 0 else 0.0
