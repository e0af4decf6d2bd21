"""What may come next at a node of a draft tree: the mixture of what all sources predict there.

A stick-breaking mixture: stages have a fixed order, the most specific first (`lade.memory.stages`), and each takes its
weight of the probability that the stages before it left. Weights are learned while decoding by online EM, one per stage
and bucket (length of the match, depth of the node). Sources that agree on a token add up.
"""

from __future__ import annotations

from dataclasses import dataclass

from lade.base.compiled import compiled
from lade.memory import automaton as automata
from lade.memory import backoff, followers, predictions, recent, reference, stages
from lade.memory.automaton import at, repeated
from lade.memory.backoff import find_warm
from lade.memory.counting import ESCAPE
from lade.memory.coverage import COVERAGE, SHARE
from lade.memory.followers import find_followers
from lade.memory.hashing import Array
from lade.memory.predictions import TOP, find_prediction
from lade.memory.recent import OFFERED
from lade.memory.reference import MATCHING
from lade.memory.row import (
    COUNTS,
    COVER,
    DEPTH,
    FIRST,
    GRAMS,
    LAST,
    MASSES,
    NODES,
    OWN,
    OWN_END,
    OWN_LENGTH,
    PARENT,
    RECENT,
    RECENT_MASSES,
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
from lade.memory.stages import BUCKETS, DEPTHS, FIRSTS, NUMBER, depth_bucket, match_bucket

MOST = 128  # no fewer than the distinct tokens that all stages predict together
SHORTEST, LEAST_SHARE = MATCHING.shortest, COVERAGE.least
BY_REFERENCE, BY_OWN_TEXT, BY_WINDOW, BY_COUNTS = stages.REFERENCE, stages.OWN, stages.WINDOW, stages.COUNTS
RECYCLED_4, RECYCLED_1, BY_WARM_TABLE = stages.RECYCLED_4, stages.RECYCLED_1, stages.WARM
BY_SHORT_COUNTS, GRAM_BUCKETS = stages.SHORT_COUNTS, stages.GRAMS
# Arrays to work in, for one thread: one stage's tokens, distinct tokens of all stages, the first stage of each, the
# stages' buckets; one stage's probabilities, those of the distinct tokens, the stages' shares.
FOUND, FIRST_STAGES, STAGE_BUCKETS = MOST, 2 * MOST, 3 * MOST
FOUND_MASSES, SHARES = MOST, 2 * MOST
SCRATCH_INTS, SCRATCH_FLOATS = 3 * MOST + NUMBER, 2 * MOST + NUMBER


@dataclass(frozen=True, slots=True)
class CalibrationPolicy:
    """How fast weights are learned. Chosen for the fewest steps with stories3M on the first 16 story prompts.

    Attributes:
        prior_strength: observations that a prior counts for.
        escape: probability of a token that no stage predicts.
    """

    prior_strength: float = 20.0
    escape: float = 1e-3


CALIBRATION = CalibrationPolicy()
UNKNOWN = CALIBRATION.escape


# Places


@compiled
def root(row: Row) -> None:
    """Make the end of the text node 0."""
    ints = row.ints
    node = ints[NODES]
    ints[node + TOKEN], ints[node + PARENT], ints[node + DEPTH], ints[node + STAGE] = token_back(ints, 1), -1, 0, -1
    for back in range(4):
        ints[node + LAST - back] = token_back(ints, 1 + back)
    state = repeated(ints, OWN)
    there = ints[OWN + automata.STATES] + state * automata.WIDTH
    length = ints[there + automata.LENGTH] if state > 0 else 0
    ints[node + OWN_END] = ints[there + automata.END] if length >= SHORTEST else -1
    ints[node + OWN_LENGTH] = length
    ints[node + REFERENCE_END] = ints[REFERENCE + reference.NEXT]
    ints[node + REFERENCE_LENGTH] = ints[REFERENCE + reference.MATCHED] + ints[REFERENCE + reference.BEGUN]
    row.floats[MASSES] = 1.0


@compiled
def follow(ints: Array, number: int, parent: int, token: int) -> None:
    """Make a node the child of another: matches continue or end, new ones are not searched."""
    node, above = ints[NODES] + number * WIDTH, ints[NODES] + parent * WIDTH
    ints[node + TOKEN], ints[node + PARENT], ints[node + DEPTH] = token, parent, ints[above + DEPTH] + 1
    for column in range(FIRST, LAST):
        ints[node + column] = ints[above + column + 1]
    ints[node + LAST] = token
    end = ints[above + OWN_END]
    ints[node + OWN_END] = end + 1 if end >= 0 and at(ints, OWN, end) == token else -1
    ints[node + OWN_LENGTH] = ints[above + OWN_LENGTH] + 1
    end = ints[above + REFERENCE_END]
    ints[node + REFERENCE_END] = end + 1 if end >= 0 and of_reference(ints, end) == token else -1
    ints[node + REFERENCE_LENGTH] = ints[above + REFERENCE_LENGTH] + 1


@compiled
def of_reference(ints: Array, index: int) -> int:
    """The token of the reference there; -1 outside it."""
    inside = 0 <= index < ints[REFERENCE + automata.TOKENS]
    return ints[ints[REFERENCE + automata.TEXT] + index] if inside else -1


# What each stage predicts after a node: writes tokens and their probabilities, returns their number and the bucket


@compiled
def predicted(row: Row, node: int, stage: int, tokens: Array, masses: Array) -> tuple[int, int]:
    ints = row.ints
    if not ints[USES + stage]:
        return 0, 0
    if stage == BY_REFERENCE:
        return by_reference(ints, node, tokens, masses)
    if stage == BY_OWN_TEXT:
        return by_own_text(ints, node, tokens, masses)
    if stage == BY_WINDOW:
        return by_window(ints, node, tokens, masses)
    if stage == BY_COUNTS:
        return by_counts(ints, node, 2, 4, tokens, masses)
    if stage <= RECYCLED_1:
        return by_predictions(ints, node, row.pool, row.pool_masses, 4 - (stage - RECYCLED_4), tokens, masses), 0
    if stage == BY_WARM_TABLE:
        return by_warm_table(ints, node, row.warm, row.warm_masses, row.floats[COVER + SHARE], tokens, masses)
    if stage == BY_SHORT_COUNTS:
        return by_counts(ints, node, 1, 1, tokens, masses)
    return by_recent(ints, row.floats, tokens, masses), 0


@compiled
def by_reference(ints: Array, node: int, tokens: Array, masses: Array) -> tuple[int, int]:
    """The reference text, read on from where the output matches it."""
    tokens[0], masses[0] = of_reference(ints, ints[node + REFERENCE_END]), 1.0
    return (1 if tokens[0] >= 0 else 0), match_bucket(ints[node + REFERENCE_LENGTH])


@compiled
def by_own_text(ints: Array, node: int, tokens: Array, masses: Array) -> tuple[int, int]:
    """The request's own text: what followed the earlier occurrence of its longest repeated suffix."""
    end = ints[node + OWN_END]
    if end < 0:
        return 0, 0
    tokens[0], masses[0] = at(ints, OWN, end), 1.0
    return 1, match_bucket(ints[node + OWN_LENGTH])


@compiled
def by_window(ints: Array, node: int, tokens: Array, masses: Array) -> tuple[int, int]:
    """n-grams that the Jacobi window found, the most recently seen first."""
    a, b, c, d = ints[node + FIRST], ints[node + FIRST + 1], ints[node + FIRST + 2], ints[node + LAST]
    context, length = find_followers(ints, GRAMS, a, b, c, d, 1, 4)
    number = min(followers_of(ints, GRAMS, context, tokens, masses), ints[USES + BY_WINDOW])
    for rank in range(number):
        masses[rank] = 0.5 ** (rank + 1)
    return number, min(length, GRAM_BUCKETS) - 1


@compiled
def by_counts(ints: Array, node: int, shortest: int, longest: int, tokens: Array, masses: Array) -> tuple[int, int]:
    """What followed the last tokens earlier in the text, by the longest context that occurred.

    This is prediction by partial matching (Cleary and Witten 1984) over prompt and output.
    """
    a, b, c, d = ints[node + FIRST], ints[node + FIRST + 1], ints[node + FIRST + 2], ints[node + LAST]
    context, length = find_followers(ints, COUNTS, a, b, c, d, shortest, longest)
    number = followers_of(ints, COUNTS, context, tokens, masses)
    for rank in range(number):
        masses[rank] /= ints[context + followers.TOTAL] + ESCAPE
    return number, length - shortest


@compiled
def followers_of(ints: Array, own: int, context: int, tokens: Array, masses: Array) -> int:
    """The first followers of a context, `TOP` at most, and how often each occurred."""
    number = 0
    if context >= 0:
        follower = ints[context + followers.HEAD]
        while follower >= 0 and number < TOP:
            there = ints[own + followers.FOLLOWERS] + follower * followers.FOLLOWER_WIDTH
            tokens[number], masses[number] = ints[there + followers.TOKEN], ints[there + followers.COUNT]
            number, follower = number + 1, ints[there + followers.NEXT]
    return number


@compiled
def by_predictions(
    ints: Array, node: int, pool: Array, pool_masses: Array, length: int, tokens: Array, masses: Array
) -> int:
    """Recycled predictions of the model after the last `length` tokens."""
    a, b, c, d = ints[node + FIRST], ints[node + FIRST + 1], ints[node + FIRST + 2], ints[node + LAST]
    context = find_prediction(pool, a, b, c, d, length)
    number = 0
    if context >= 0:
        there = pool[predictions.CONTEXTS] + context * predictions.WIDTH + predictions.TOKENS
        while number < TOP and pool[there + number] >= 0:
            tokens[number], masses[number] = pool[there + number], pool_masses[context * TOP + number]
            number += 1
    return number


@compiled
def by_warm_table(
    ints: Array, node: int, warm: Array, warm_masses: Array, share: float, tokens: Array, masses: Array
) -> tuple[int, int]:
    """The warm table's prediction for the longest suffix of the context that it knows."""
    if share < LEAST_SHARE:
        return 0, 0
    a, b, c, d = ints[node + FIRST], ints[node + FIRST + 1], ints[node + FIRST + 2], ints[node + LAST]
    context, length = find_warm(warm, warm_masses, a, b, c, d)
    number = warm[backoff.COLUMNS] if context >= 0 else 0
    for rank in range(number):
        there = context * number + rank
        tokens[rank], masses[rank] = warm[warm[backoff.TOKENS] + there], share * warm_masses[there]
    return number, length


@compiled
def by_recent(ints: Array, floats: Array, tokens: Array, masses: Array) -> int:
    """What the model thought likely in recent steps, whatever the context."""
    number = min(OFFERED, ints[RECENT + recent.NUMBER])
    for rank in range(number):
        tokens[rank] = ints[RECENT + 1 + rank]
        masses[rank] = floats[RECENT_MASSES + 1 + rank] / floats[RECENT_MASSES + recent.TOTAL]
    return number


@compiled
def bucket_of(stage: int, depth: int, bucket: int) -> int:
    """The place of a stage's bucket among all weights."""
    per_depth = (FIRSTS[stage + 1] - FIRSTS[stage]) // DEPTHS
    return FIRSTS[stage] + depth_bucket(depth) * per_depth + bucket


# The mixture


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
