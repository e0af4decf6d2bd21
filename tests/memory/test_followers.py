"""Counts of what followed a context, and n-grams of the window, against the text itself."""

from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rowarrays import memory_of, predicted_after, write

from lade.memory import row, rowmemory
from lade.memory.context import CONTEXT
from lade.memory.counting import COUNTING
from lade.memory.pools import fresh_pool
from lade.memory.predictions import TOP
from lade.memory.row import USES
from lade.memory.rowmemory import RowMemory
from lade.memory.stages import COUNTS, SHORT_COUNTS, WINDOW

pytestmark = pytest.mark.usefixtures("as_python")

POOL = fresh_pool()
TOKENS = st.integers(0, 3)
TEXTS = st.lists(TOKENS, max_size=40)
CONTEXTS = st.lists(TOKENS, min_size=CONTEXT, max_size=CONTEXT)


def counted(text: list[int]) -> RowMemory:
    return memory_of(text, pool=POOL)


def followers(text: list[int], context: list[int]) -> list[int]:
    """The tokens after each occurrence of a context."""
    ends = range(len(context), len(text))
    return [text[end] for end in ends if text[end - len(context) : end] == context]


@given(text=TEXTS, prompt=st.integers(0, 40), context=CONTEXTS)
def test_probabilities_are_those_of_the_longest_context_that_occurred(
    text: list[int], prompt: int, context: list[int]
) -> None:
    """However much of the text comes at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rowmemory, "TOKENS", 0)
        memory = counted(text[:prompt])
        write(memory, text[prompt:])
    for stage, lengths in ((COUNTS, (4, 3, 2)), (SHORT_COUNTS, (1,))):
        bucket, tokens, probabilities = predicted_after(memory, stage, *context)
        length = next((each for each in lengths if followers(text, context[-each:])), 0)
        found = followers(text, context[-length:]) if length else []
        assert dict(zip(tokens, probabilities, strict=True)) == pytest.approx(
            {token: count / (len(found) + COUNTING.escape) for token, count in Counter(found).items()}
        )
        latest = [*dict.fromkeys(reversed(found))]  # which comes first of those that are as frequent
        assert tokens == sorted(latest, key=found.count, reverse=True)
        assert not found or bucket == length - lengths[-1]


def test_the_most_frequent_tokens_are_predicted() -> None:
    text = [token for each in range(2 * TOP) for token in (99, 100, each)] + [99, 100, 3, 98, 100]
    _, tokens, probabilities = predicted_after(counted(text), SHORT_COUNTS, 0, 0, 97, 100)
    assert (len(tokens), tokens[0]) == (TOP, 3)
    assert probabilities[0] == pytest.approx(2 / (2 * TOP + 1 + COUNTING.escape))


def test_of_a_long_text_the_end_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row, "COUNTED", 4)
    memory = counted([5, 6, *[1] * 4])
    assert predicted_after(memory, SHORT_COUNTS, 5)[1] == []
    assert predicted_after(memory, SHORT_COUNTS, 1)[1] == [1]


@example(grams=[[0, 1], [0, 1], [0, 2]], context=[0, 0, 0, 0])
@given(grams=st.lists(st.lists(TOKENS, min_size=2, max_size=6), min_size=1, max_size=12), context=CONTEXTS)
def test_ngrams_of_the_window_are_ranked_by_when_they_were_seen(grams: list[list[int]], context: list[int]) -> None:
    """By the longest context that begins an n-gram."""
    seen = [(gram[:length], gram[length]) for gram in grams for length in range(1, min(len(gram), CONTEXT + 1))]
    memory = memory_of([0], grams=grams[:1], pool=POOL)
    for gram in grams[1:]:
        memory.add_grams([gram])
    bucket, tokens, probabilities = predicted_after(memory, WINDOW, *context)
    of_lengths = [[token for known, token in seen if known == context[-length:]] for length in range(CONTEXT + 1)]
    length = max((length for length in range(1, CONTEXT + 1) if of_lengths[length]), default=0)
    assert tokens == [*dict.fromkeys(reversed(of_lengths[length]))]
    assert probabilities == [0.5 ** (rank + 1) for rank in range(len(tokens))]
    assert not tokens or bucket == min(length, 3) - 1


def test_the_latest_ngrams_are_predicted() -> None:
    memory = memory_of([0], grams=[(9, token) for token in range(2 * TOP)], pool=POOL)
    assert predicted_after(memory, WINDOW, 9)[1] == [2 * TOP - 1 - rank for rank in range(TOP)]


def test_the_window_offers_no_more_than_its_guesses() -> None:
    memory = memory_of([0], grams=[(9, token) for token in range(2 * TOP)], pool=POOL)
    memory.row().ints[USES + WINDOW] = 3
    assert predicted_after(memory, WINDOW, 9)[1] == [2 * TOP - 1, 2 * TOP - 2, 2 * TOP - 3]
