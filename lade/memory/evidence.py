"""What each stage of the mixture (`lade.memory.mixture`) predicts after a node of a draft tree."""

from __future__ import annotations

from lade.base.compiled import compiled
from lade.memory import automaton as automata
from lade.memory import backoff, predictions, recent, stages
from lade.memory.backoff import find_warm
from lade.memory.context import CONTEXT
from lade.memory.coupling import couple
from lade.memory.coverage import COVERAGE, SHARE
from lade.memory.followers import find_contexts
from lade.memory.hashing import Array
from lade.memory.predictions import TOP, find_predictions, is_kept
from lade.memory.recent import OFFERED
from lade.memory.row import (
    BEGUN,
    CORPUS_MATCH,
    COUNTS,
    COVER,
    DEPTH,
    FIRST,
    LAST,
    NOISE,
    OWN,
    OWN_MATCH,
    RECENT,
    RECENT_MASSES,
    SIBLING_MASSES,
    SIBLINGS,
    USES,
    Row,
)
from lade.memory.siblings import of_siblings
from lade.memory.stages import DEPTHS, FIRSTS, NUMBER, depth_bucket
from lade.memory.textevidence import (
    by_corpus,
    by_counts,
    by_frequent,
    by_mismatch,
    by_own_text,
    by_reference,
    by_window,
)

MOST = 128  # no fewer than the distinct tokens that all stages predict together
LEAST_SHARE = COVERAGE.least
BY_REFERENCE, BY_OWN_TEXT, BY_MISMATCH = stages.REFERENCE, stages.OWN, stages.MISMATCH
BY_CORPUS, BY_FREQUENT, BY_WINDOW = stages.CORPUS, stages.CORPUS_OFTEN, stages.WINDOW
BY_COUNTS, BY_SHORT_COUNTS = stages.COUNTS, stages.SHORT_COUNTS
RECYCLED_4, RECYCLED_1, BY_SIBLINGS = stages.RECYCLED_4, stages.RECYCLED_1, stages.SIBLINGS
BY_KEPT, BY_WARM_TABLE = stages.KEPT, stages.WARM
# Arrays to work in, for one thread: one stage's tokens, distinct tokens of all stages, the first stage of each, the
# stages' buckets, where the contexts of one to four tokens stand in the counts and in the pool (-1: nowhere); one
# stage's probabilities, those of the distinct tokens, the stages' shares.
FOUND, FIRST_STAGES, STAGE_BUCKETS = MOST, 2 * MOST, 3 * MOST
COUNTED = STAGE_BUCKETS + NUMBER
RECYCLED = COUNTED + CONTEXT
FOUND_MASSES, SHARES = MOST, 2 * MOST
SCRATCH_INTS, SCRATCH_FLOATS = RECYCLED + CONTEXT, 2 * MOST + NUMBER


@compiled
def look_up(row: Row, node: int, tokens: Array) -> None:
    """Find what is stored by the last one to four tokens of a node, for `predicted`."""
    ints = row.ints
    a, b, c, d = ints[node + FIRST], ints[node + FIRST + 1], ints[node + FIRST + 2], ints[node + LAST]
    if ints[USES + BY_COUNTS]:
        find_contexts(ints, COUNTS, a, b, c, d, tokens, COUNTED)
    if ints[USES + RECYCLED_1]:
        find_predictions(row.pool, a, b, c, d, tokens, RECYCLED)


@compiled
def predicted(row: Row, node: int, stage: int, tokens: Array, masses: Array) -> tuple[int, int]:
    """What a stage predicts after a node that `look_up` was called for.

    Args:
        tokens, masses: arrays to work in; they begin with the tokens and their probabilities afterwards.

    Returns:
        The number of tokens, and the stage's bucket.
    """
    ints = row.ints
    if not ints[USES + stage]:
        return 0, 0
    if stage == BY_REFERENCE:
        return by_reference(ints, node, tokens, masses)
    if stage == BY_OWN_TEXT:
        return by_own_text(ints, node + OWN_MATCH, tokens, masses)
    if stage == BY_MISMATCH:
        return by_mismatch(ints, node + OWN_MATCH, tokens, masses)
    if stage == BY_CORPUS:
        return by_corpus(row.corpus, ints, node + CORPUS_MATCH, tokens, masses)
    if stage == BY_FREQUENT:
        return by_frequent(row.corpus, ints, node + CORPUS_MATCH, tokens, masses)
    if stage == BY_WINDOW:
        return by_window(ints, node, tokens, masses)
    if stage == BY_COUNTS:
        return by_counts(ints, 2, 4, tokens, masses, COUNTED)
    if stage <= BY_SIBLINGS:
        return by_model(row, node, stage, tokens, masses)
    if stage == BY_SHORT_COUNTS:
        return by_counts(ints, 1, 1, tokens, masses, COUNTED)
    return by_recent(ints, row.floats, tokens, masses), 0


@compiled
def by_model(row: Row, node: int, stage: int, tokens: Array, masses: Array) -> tuple[int, int]:
    """What the model predicted earlier, in this text, in earlier ones or in its warm table, coupled with the noise of
    sampling."""
    if stage == BY_WARM_TABLE:
        share = row.floats[COVER + SHARE]
        number, bucket = by_warm_table(row.ints, node, row.warm, row.warm_masses, share, tokens, masses)
    elif stage == BY_SIBLINGS:
        number, bucket = by_siblings(row, node, tokens, masses), 0
    elif stage == BY_KEPT:
        number, bucket = by_kept(row, tokens, masses)
    else:
        number, bucket = by_own(row, 4 - (stage - RECYCLED_4), tokens, masses), 0
    couple(row.ints, NOISE, row.noise, row.ints[node + DEPTH], tokens, masses, number)
    return number, bucket


@compiled
def by_own(row: Row, length: int, tokens: Array, masses: Array) -> int:
    """The request's own recycled predictions after the last `length` tokens."""
    context = tokens[RECYCLED + length - 1]
    if context < 0 or is_kept(row.pool, context, row.ints[BEGUN]):
        return 0
    return by_context(row, context, tokens, masses)


@compiled
def by_siblings(row: Row, node: int, tokens: Array, masses: Array) -> int:
    """What the model predicted after other drafts of the text's last token."""
    ints = row.ints
    if ints[node + DEPTH] > 0:
        return 0
    return of_siblings(ints, row.floats, SIBLINGS, SIBLING_MASSES, ints[OWN + automata.TOKENS], tokens, masses)


@compiled
def by_kept(row: Row, tokens: Array, masses: Array) -> tuple[int, int]:
    """What earlier requests left in the pool after the longest suffix of the context that it knows from them alone."""
    for length in range(CONTEXT, 0, -1):
        context = tokens[RECYCLED + length - 1]
        if is_kept(row.pool, context, row.ints[BEGUN]):
            return by_context(row, context, tokens, masses), length - 1
    return 0, 0


@compiled
def by_context(row: Row, context: int, tokens: Array, masses: Array) -> int:
    """The recycled predictions of a context of the pool."""
    number, there = 0, row.pool[predictions.CONTEXTS] + context * predictions.WIDTH + predictions.TOKENS
    while number < TOP and row.pool[there + number] >= 0:
        tokens[number], masses[number] = row.pool[there + number], row.pool_masses[context * TOP + number]
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
