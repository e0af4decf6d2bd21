"""Counts of what followed a context, against the text itself."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lade.memory.counts import COUNTING, FollowerCounts
from lade.memory.recycle import CONTEXT, TOP

TEXTS = st.lists(st.integers(0, 3), max_size=40)


def followers(text: list[int], context: tuple[int, ...]) -> list[int]:
    """The tokens after each occurrence of a context."""
    ends = range(len(context), len(text))
    return [text[end] for end in ends if tuple(text[end - len(context) : end]) == context]


@given(
    text=TEXTS,
    parts=st.lists(st.integers(0, 40), max_size=3),
    asked=st.lists(st.integers(0, 3), min_size=4, max_size=4),
)
def test_probabilities_are_those_of_the_longest_context_that_occurred(
    text: list[int], parts: list[int], asked: list[int]
) -> None:
    """Whatever the parts in which the text comes, and whatever was asked in between."""
    counts, context = FollowerCounts(), (asked[0], asked[1], asked[2], asked[3])
    for begin, end in zip([0, *sorted(parts)], [*sorted(parts), len(text)], strict=True):
        counts.extend(text[begin:end])
        counts.entry(context)
    length, (tokens, probabilities) = counts.entry(context)
    found = next((each for size in range(CONTEXT, 0, -1) if (each := followers(text, context[-size:]))), [])
    assert dict(zip(tokens, probabilities, strict=True)) == pytest.approx(
        {token: count / (len(found) + COUNTING.escape) for token, count in Counter(found).items()}
    )
    assert probabilities == sorted(probabilities, reverse=True)
    assert length == max((size for size in range(1, CONTEXT + 1) if followers(text, context[-size:])), default=0)


def test_of_equally_frequent_tokens_the_latest_comes_first() -> None:
    assert FollowerCounts([7, 1, 7, 2, 7]).entry((0, 0, 0, 7)) == (1, ([2, 1], [1 / (2 + COUNTING.escape)] * 2))
    assert FollowerCounts([7, 2, 7, 1, 7, 1, 7, 2, 7]).entry((0, 0, 0, 7))[1][0] == [2, 1]


def test_the_most_frequent_tokens_are_predicted() -> None:
    text = [token for each in range(2 * TOP) for token in (99, 100, each)] + [99, 100, 3, 98, 100]
    length, (tokens, probabilities) = FollowerCounts(text).entry((0, 0, 97, 100))
    assert (length, len(tokens), tokens[0]) == (1, TOP, 3)
    assert probabilities[0] == pytest.approx(2 / (2 * TOP + 1 + COUNTING.escape))


def test_of_a_long_text_the_end_is_counted() -> None:
    counts = FollowerCounts([5, 6, *[1] * COUNTING.places])
    assert counts.entry((0, 0, 0, 5)) == (0, ([], []))
    assert counts.entry((0, 0, 0, 1))[0] == 1


def test_contexts_of_other_lengths_are_not_looked_up() -> None:
    counts = FollowerCounts([1, 2, 3, 1, 2, 3])
    assert counts.entry((0, 0, 1, 2), (3, 2))[0] == 2
    assert counts.entry((0, 0, 9, 2), (3, 2)) == (0, ([], []))
    assert counts.entry((0, 3, 1, 2), (3, 2))[0] == 3
    assert counts.entry((0, 3, 1, 2), (1,))[0] == 1
