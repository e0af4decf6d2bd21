"""What texts predict after a node of a draft tree: the reference, a corpus, and the request's own text and n-grams."""

from __future__ import annotations

from lade.base.compiled import compiled
from lade.memory import automaton as automata
from lade.memory import corpus as corpora
from lade.memory import followers, stages
from lade.memory.corpus import following, frequent, occurrences
from lade.memory.counting import ESCAPE
from lade.memory.followers import find_followers
from lade.memory.hashing import Array
from lade.memory.matches import BEFORE, LENGTH, expected, mismatch_bucket
from lade.memory.places import of_reference
from lade.memory.predictions import TOP
from lade.memory.row import COUNTS, FIRST, GRAMS, LAST, OWN, REFERENCE_END, REFERENCE_LENGTH, USES
from lade.memory.stages import match_bucket

BY_WINDOW, ONCE, AGAIN, GRAM_BUCKETS = stages.WINDOW, stages.ONCE, stages.AGAIN, stages.GRAMS


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
def by_counts(ints: Array, shortest: int, longest: int, tokens: Array, masses: Array, contexts: int) -> tuple[int, int]:
    """What followed the last tokens earlier in the text, by the longest context that occurred.

    This is prediction by partial matching (Cleary and Witten 1984) over prompt and output.

    Args:
        contexts: where the contexts of one to four tokens stand in the tokens (-1: nowhere).
    """
    length = longest
    while length >= shortest and tokens[contexts + length - 1] < 0:
        length -= 1
    if length < shortest:
        return 0, 0
    context = tokens[contexts + length - 1]
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
