"""Text measures: worked by hand, and bounds that every text keeps."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lade.applications.text_measures import (
    MEASURES,
    UNITS,
    averaged,
    distinct,
    diversity,
    measures_of,
    ngram_entropy,
    ngrams,
    repetition,
)

TEXTS = st.lists(st.integers(0, 4), max_size=30)
ORDERS = st.integers(1, 5)


def test_ngrams_by_hand() -> None:
    assert ngrams("abab", 2) == {("a", "b"): 2, ("b", "a"): 1}
    assert ngrams("abab", 5) == {}


def test_entropy_by_hand() -> None:
    """abab: a and b twice each; ab twice and ba once; aba and bab."""
    assert ngram_entropy("abab", 1) == pytest.approx(math.log(2))
    assert ngram_entropy("abab", 2) == pytest.approx(math.log(3) - 2 / 3 * math.log(2))
    assert ngram_entropy("abab", 3) == pytest.approx(math.log(2))
    assert ngram_entropy("aaaa", 1) == 0
    assert ngram_entropy("aab", 1) == pytest.approx(0.6365141682948128)


def test_shares_by_hand() -> None:
    """to be or not to be: 4 words of 6, 4 pairs of 5, all threes and fours different."""
    text = ["to", "be", "or", "not", "to", "be"]
    assert [distinct(text, n) for n in (1, 2, 3)] == pytest.approx([4 / 6, 4 / 5, 1])
    assert repetition(text, 1) == pytest.approx(2 / 6)
    assert repetition([1, 2, 3, 4] * 3, 4) == pytest.approx(5 / 9)
    assert diversity(text) == pytest.approx(4 / 5)
    assert diversity([1, 2, 1, 2, 1, 2]) == pytest.approx(2 / 5 * 2 / 4 * 2 / 3)


@pytest.mark.parametrize("measure", [ngram_entropy, distinct, repetition])
def test_texts_without_ngrams(measure: Callable[..., float | None]) -> None:
    assert measure([], 1) is None
    assert measure([1, 2], 3) is None
    assert measure([1, 2, 3], 3) is not None
    with pytest.raises(ValueError, match="n must be an integer of at least 1, got 0"):
        measure([1], 0)


@given(TEXTS, ORDERS)
def test_bounds(text: list[int], n: int) -> None:
    total = len(text) - n + 1
    entropy, share = ngram_entropy(text, n), distinct(text, n)
    if total < 1:
        assert entropy is share is None
        return
    assert entropy is not None
    assert share is not None
    assert -1e-12 <= entropy <= math.log(total) + 1e-12
    assert entropy <= math.log(share * total) + 1e-12  # of so many different ones
    assert 1 / total <= share <= 1
    assert 0 <= (repetition(text, n) or 0) < 1


@given(TEXTS, ORDERS)
def test_names_of_units_and_direction_do_not_matter(text: list[int], n: int) -> None:
    renamed = [str(4 - unit) for unit in text]
    for measure in (ngram_entropy, distinct, repetition):
        assert measure(renamed, n) == pytest.approx(measure(text, n))
        assert measure(text[::-1], n) == pytest.approx(measure(text, n))


@given(st.permutations(range(12)))
def test_no_repetition(text: list[int]) -> None:
    assert [distinct(text, n) for n in (1, 2, 3)] == [1, 1, 1]
    assert ngram_entropy(text, 2) == pytest.approx(math.log(11))
    assert diversity(text) == 1


def test_all_measures_of_a_text() -> None:
    found = measures_of([7] * 5)
    assert list(found) == list(MEASURES)
    assert found["entropy-1"] == found["entropy-3"] == 0
    assert found["distinct-2"] == pytest.approx(1 / 4)
    assert found["repetition-4"] == pytest.approx(1 / 2)
    assert measures_of([7])["distinct-2"] is None


def test_words_are_measured_in_bits_and_tokens_in_nats() -> None:
    assert ngram_entropy("abab", 1, base=2) == pytest.approx(1)
    words, tokens = UNITS["words"], UNITS["tokens"]
    text = words.split([1, 2], lambda ids: "to be\nor not  to be")
    assert measures_of(text, words.base)["entropy-1"] == pytest.approx(2 / 3 * math.log2(3) + 1 / 3 * math.log2(6))
    assert measures_of(tokens.split([1, 2], str), tokens.base)["entropy-1"] == pytest.approx(math.log(2))


def test_average_leaves_out_what_is_too_short() -> None:
    texts = [{"a": 1.0, "b": None}, {"a": 2.0, "b": 5.0}, {"a": 6.0, "b": None, "c": None}]
    assert averaged(texts) == {"a": 3.0, "b": 5.0, "c": None}
    assert averaged([]) == {}
