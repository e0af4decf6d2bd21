"""What each stage of the mixture (`lade.memory.mixture`) predicts after a node of a draft tree."""

from __future__ import annotations

from lade.base.compiled import compiled
from lade.memory import automaton as automata
from lade.memory import backoff, followers, predictions, recent, stages
from lade.memory import corpus as corpora
from lade.memory.backoff import find_warm
from lade.memory.context import CONTEXT
from lade.memory.corpus import following, frequent, occurrences
from lade.memory.counting import ESCAPE
from lade.memory.coupling import couple
from lade.memory.coverage import COVERAGE, SHARE
from lade.memory.followers import find_contexts, find_followers
from lade.memory.hashing import Array
from lade.memory.matches import BEFORE, LENGTH, expected, mismatch_bucket
from lade.memory.places import of_reference
from lade.memory.predictions import TOP, find_predictions, is_kept
from lade.memory.recent import OFFERED
from lade.memory.row import (
    BEGUN,
    CORPUS_MATCH,
    COUNTS,
    COVER,
    DEPTH,
    FIRST,
    GRAMS,
    LAST,
    NOISE,
    OWN,
    OWN_MATCH,
    RECENT,
    RECENT_MASSES,
    REFERENCE_END,
    REFERENCE_LENGTH,
    SIBLING_MASSES,
    SIBLINGS,
    USES,
    Row,
)
from lade.memory.siblings import of_siblings
from lade.memory.stages import DEPTHS, FIRSTS, NUMBER, depth_bucket, match_bucket

MOST = 128  # no fewer than the distinct tokens that all stages predict together
LEAST_SHARE = COVERAGE.least
BY_REFERENCE, BY_OWN_TEXT, BY_MISMATCH = stages.REFERENCE, stages.OWN, stages.MISMATCH
BY_CORPUS, BY_FREQUENT, ONCE, AGAIN = stages.CORPUS, stages.CORPUS_OFTEN, stages.ONCE, stages.AGAIN
BY_WINDOW, BY_COUNTS = stages.WINDOW, stages.COUNTS
RECYCLED_4, RECYCLED_1, BY_SIBLINGS = stages.RECYCLED_4, stages.RECYCLED_1, stages.SIBLINGS
BY_KEPT, BY_WARM_TABLE = stages.KEPT, stages.WARM
BY_SHORT_COUNTS, GRAM_BUCKETS = stages.SHORT_COUNTS, stages.GRAMS
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
        return by_counts(ints, 2, 4, tokens, masses)
    if stage <= BY_SIBLINGS:
        return by_model(row, node, stage, tokens, masses)
    if stage == BY_SHORT_COUNTS:
        return by_counts(ints, 1, 1, tokens, masses)
    return by_recent(ints, row.floats, tokens, masses), 0


@compiled
def by_reference(ints: Array, node: int, tokens: Array, masses: Array) -> tuple[int, int]:
    """The reference text, read on from where the output matches it."""
    tokens[0], masses[0] = of_reference(ints, ints[node + REFERENCE_END]), 1.0
    return (1 if tokens[0] >= 0 else 0), match_bucket(ints[node + REFERENCE_LENGTH])


@compiled
def by_own_text(ints: Array, match: int, tokens: Array, masses: Array) -> tuple[int, int]:
    """The request's own text: what followed the earlier occurrence of its longest repeated suffix."""
    if ints[match + BEFORE] > 0:
        return 0, 0
    tokens[0], masses[0] = expected(ints, OWN, match), 1.0
    return (1 if tokens[0] >= 0 else 0), match_bucket(ints[match + LENGTH])


@compiled
def by_mismatch(ints: Array, match: int, tokens: Array, masses: Array) -> tuple[int, int]:
    """The same behind a mismatch."""
    if ints[match + BEFORE] == 0:
        return 0, 0
    tokens[0], masses[0] = expected(ints, OWN, match), 1.0
    return (1 if tokens[0] >= 0 else 0), mismatch_bucket(ints[match + LENGTH], ints[match + BEFORE])


@compiled
def by_corpus(corpus: Array, ints: Array, match: int, tokens: Array, masses: Array) -> tuple[int, int]:
    """What followed the longest suffix that occurs in the corpus."""
    state, length = ints[match + corpora.STATE], ints[match + corpora.LENGTH]
    if length == 0:
        return 0, 0
    first = AGAIN if occurrences(corpus, state) > 1 else ONCE
    return following(corpus, state, tokens, masses), first + match_bucket(length)


@compiled
def by_frequent(corpus: Array, ints: Array, match: int, tokens: Array, masses: Array) -> tuple[int, int]:
    """What followed the longest suffix that occurs often in the corpus, where a longer one occurs too."""
    state = frequent(corpus, ints[match + corpora.STATE])
    if state == 0 or state == ints[match + corpora.STATE]:
        return 0, 0
    length = corpus[corpus[automata.STATES] + state * automata.WIDTH + automata.LENGTH]
    return following(corpus, state, tokens, masses), match_bucket(length)


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
def by_counts(ints: Array, shortest: int, longest: int, tokens: Array, masses: Array) -> tuple[int, int]:
    """What followed the last tokens earlier in the text, by the longest context that occurred.

    This is prediction by partial matching (Cleary and Witten 1984) over prompt and output.
    """
    length = longest
    while length >= shortest and tokens[COUNTED + length - 1] < 0:
        length -= 1
    if length < shortest:
        return 0, 0
    context = tokens[COUNTED + length - 1]
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
