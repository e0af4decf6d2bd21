"""The pool of n-grams, against a list that remembers everything."""

from hypothesis import given
from hypothesis import strategies as st

from lade.memory.ngrams import NgramPool

TOKENS = st.integers(0, 2)


def most_recent(seen: list[tuple[int, ...]], key: int, guesses: int) -> list[tuple[int, ...]]:
    """The last `guesses` different values of a key, the most recently seen first."""
    values = [gram[1:] for gram in reversed(seen) if gram[0] == key]
    distinct = list(dict.fromkeys(values))
    return distinct if guesses == -1 else distinct[:guesses]


@given(st.integers(2, 4), st.sampled_from([-1, 1, 2, 3]), st.data())
def test_pool_keeps_the_least_recently_seen_shortest(ngram: int, guesses: int, data: st.DataObject) -> None:
    pool = NgramPool(ngram, guesses)
    grams = data.draw(st.lists(st.tuples(*[TOKENS] * ngram), max_size=30))
    for index, gram in enumerate(grams):
        pool.add(gram)
        for key in range(3):
            assert list(pool.lookup(key)) == most_recent(grams[: index + 1], key, guesses)
    assert len(pool) == sum(len(most_recent(grams, key, guesses)) for key in range(3))


def test_seeing_again_is_what_keeps_a_guess() -> None:
    pool = NgramPool(ngram=2, guesses=2)
    for gram in ((1, 2), (1, 3), (1, 2), (1, 4)):
        pool.add(gram)
    assert list(pool.lookup(1)) == [(4,), (2,)]


def test_unlimited() -> None:
    pool = NgramPool(ngram=3, guesses=-1)
    for token in range(1000):
        pool.add((0, token, token))
    assert len(pool) == 1000
    assert next(pool.lookup(0)) == (999, 999)


def test_an_unknown_key_has_no_guesses() -> None:
    assert list(NgramPool(ngram=3, guesses=1).lookup(5)) == []


# Texts


def all_grams(tokens: list[int], ngram: int) -> list[tuple[int, ...]]:
    return [tuple(tokens[first : first + ngram]) for first in range(len(tokens) - ngram + 1)]


@given(st.integers(2, 4), st.sampled_from([-1, 2]), st.lists(TOKENS, max_size=12))
def test_text_is_its_windows_in_order(ngram: int, guesses: int, tokens: list[int]) -> None:
    pool = NgramPool(ngram, guesses)
    pool.add_text(tokens)
    for key in range(3):
        assert list(pool.lookup(key)) == most_recent(all_grams(tokens, ngram), key, guesses)


@given(st.integers(2, 4), st.lists(st.lists(TOKENS, min_size=1, max_size=4), max_size=6))
def test_text_that_grows(ngram: int, pieces: list[list[int]]) -> None:
    """Adding what is new, with `start` at its beginning, adds the n-grams that reach into it: each exactly once."""
    pool, added = NgramPool(ngram, -1), []
    pool.add = added.append  # type: ignore[method-assign]
    text: list[int] = []
    for piece in pieces:
        text += piece
        pool.add_text(text, start=len(text) - len(piece))
    assert [tuple(gram) for gram in added] == all_grams(text, ngram)
