"""What is expected after a place: shares of one whole, whatever the stages know; places against longer texts."""

import copy
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lade.memory.calibration import CALIBRATION
from lade.memory.counts import FollowerCounts
from lade.memory.mixture import Mixture, Place
from lade.memory.ngrams import NgramPool
from lade.memory.pools import Pool, fresh_pool
from lade.memory.recycle import CONTEXT, NOTHING, TOP, Context, Entry
from lade.memory.source import Source, depth_bucket
from lade.memory.sources import (
    SOURCES,
    FromCounts,
    FromOwnText,
    FromPredictions,
    FromReference,
    FromWindow,
    match_bucket,
    stages,
)
from lade.memory.suffix import MATCHING, OwnText, ReferenceText
from lade.memory.warmsource import FromWarmTable, warm_bucket

VOCABULARY = range(6)
TEXTS = st.lists(st.integers(0, 2), min_size=1, max_size=20)
MIXTURES = {"seed": st.integers(0, 10_000), "text": TEXTS, "path": st.lists(st.integers(0, 2), max_size=4)}
STAGES = len(stages())
REFERENCE, SUFFIX, WINDOW, COUNTS, RECYCLED, *_, WARM, SHORT, RECENT = range(STAGES)
FIRST = dict(zip(SOURCES, (REFERENCE, SUFFIX, WINDOW, COUNTS, RECYCLED, WARM, SHORT, RECENT), strict=True))


class Warm:
    """The same prediction after every context."""

    def __init__(self, tokens: Sequence[int], probabilities: Sequence[float]) -> None:
        self.known = list(tokens), list(probabilities)

    def entry(self, context: Context) -> tuple[int, list[int], list[float]]:
        return context[-1] % 2, *self.known


def prediction(noise: random.Random) -> Entry:
    """Up to five tokens with probabilities that sum to at most 1."""
    weights = sorted((noise.random() ** 3 for _ in range(noise.randint(1, 5))), reverse=True)
    scale = sum(weights) / noise.uniform(0.01, 1)
    return noise.sample(VOCABULARY, k=len(weights)), [weight / scale for weight in weights]


def mixture_of(seed: int, text: Sequence[int]) -> Mixture:
    """Every stage there is, taught by chance, with weights anywhere between 0 and 1."""
    noise, pool = random.Random(seed), fresh_pool()
    pool.calibration.weights = [[noise.random() for _ in stage] for stage in pool.calibration.weights]
    for _ in range(40):
        pool.table.learn(tuple(noise.choices(range(3), k=CONTEXT)), prediction(noise))  # type: ignore[arg-type]
    ngrams = NgramPool(3, -1)
    ngrams.add_text(noise.choices(range(3), k=10))
    reference = ReferenceText(noise.choices(range(3), k=10))
    reference.extend(noise.choices(range(3), k=noise.randrange(3)))
    return Mixture(
        pool,
        [
            FromReference(REFERENCE, reference),
            FromOwnText(SUFFIX, OwnText(text)),
            FromWindow(WINDOW, ngrams),
            FromCounts(COUNTS, FollowerCounts(text)),
            FromPredictions(RECYCLED, pool.table),
            FromWarmTable(WARM, Warm(*prediction(noise))),
        ],
    )


def bare(*makers: Callable[[Pool], Source]) -> Mixture:
    """Only the given sources, each with a weight of one half."""
    pool = fresh_pool()
    pool.calibration.weights = [[0.5] * len(stage) for stage in pool.calibration.weights]
    return Mixture(pool, [make(pool) for make in makers])


def of(kind: Any, *what: object) -> Callable[[Pool], Source]:
    """A source that predicts from this; recycled predictions are the pool's."""
    return lambda pool: kind(FIRST[kind], *(what or (pool.table,)))


# What is expected


@given(**MIXTURES)
def test_masses_are_shares_of_one_whole(seed: int, text: list[int], path: list[int]) -> None:
    mixture = mixture_of(seed, text)
    place = mixture.place(text)
    for depth, token in enumerate([*path, 0]):
        masses, stages = mixture.expect(place, depth, 0.0)
        assert masses.keys() == stages.keys()
        assert all(0 <= mass <= 1 for mass in masses.values())
        assert sum(masses.values()) <= 1 + 1e-9
        place = mixture.follow(place, token)


@given(**MIXTURES, floor=st.floats(0, 0.5))
def test_a_floor_removes_and_never_adds(seed: int, text: list[int], path: list[int], floor: float) -> None:
    """What it removes of a token is less than the floor for each stage."""
    mixture = mixture_of(seed, text)
    place = mixture.place(text)
    for token in path:
        place = mixture.follow(place, token)
    whole, first = mixture.expect(place, len(path), 0.0)
    masses, stages = mixture.expect(place, len(path), floor)
    assert masses.keys() <= whole.keys()
    assert all(masses[token] <= whole[token] + 1e-12 and stages[token] >= first[token] for token in masses)
    for token, mass in whole.items():
        assert mass - masses.get(token, 0.0) <= STAGES * floor + 1e-12


def test_stages_that_agree_add_up() -> None:
    """Weights of one half: the own text takes 1/2, of what is left the table's four lengths 1/4 .. 1/32, and so on."""
    text = [3, 1, 2, 4, 1, 2]  # after 1 2 came 4
    mixture = bare(of(FromOwnText, OwnText(text)), of(FromPredictions), of(FromWarmTable, Warm([5, 4], [0.5, 0.25])))
    mixture.pool.table.young[2][(1, 2)] = ([4, 5], [0.5, 0.25])
    masses, stages = mixture.expect(mixture.place(text), 0, 0.0)
    assert masses == pytest.approx({4: 1 / 2 + 1 / 8 + 1 / 32, 5: 1 / 16 + 1 / 16})
    assert stages == {4: SUFFIX, 5: RECYCLED + 2}


def test_every_stage_stands_in_its_order() -> None:
    text, ngrams = [1, 2, 3, 1, 2], NgramPool(3, -1)
    ngrams.add_text([1, 2, 4])
    reference = ReferenceText([1, 2, 5])
    reference.extend([1, 2])
    mixture = bare(
        of(FromReference, reference),
        of(FromOwnText, OwnText(text)),
        of(FromWindow, ngrams),
        of(FromPredictions),
        of(FromWarmTable, Warm([9], [1.0])),
    )
    mixture.pool.table.learn((2, 3, 1, 2), ([6], [1.0]))
    mixture.pool.table.young[1][(3, 1, 2)] = ([7], [1.0])
    masses, stages = mixture.expect(mixture.place(text), 0, 0.0)
    assert stages == {5: REFERENCE, 3: SUFFIX, 4: WINDOW, 6: RECYCLED, 7: RECYCLED + 1, 9: WARM}
    shares = {5: 1 / 2, 3: 1 / 4, 4: 1 / 16, 6: 1 / 16 + 1 / 64 + 1 / 128, 7: 1 / 32, 9: 1 / 256}
    assert masses == pytest.approx(shares)


def test_the_windows_ngrams_are_ranked_by_when_they_were_seen() -> None:
    ngrams = NgramPool(2, -1)
    for token in range(20):
        ngrams.add((9, token))
    mixture = bare(of(FromWindow, ngrams))
    masses, _ = mixture.expect(mixture.place([9]), 0, 0.0)
    assert masses == pytest.approx({19 - rank: 0.5 * 0.5 ** (rank + 1) for rank in range(TOP)})


def test_without_stages_nothing_is_expected() -> None:
    mixture = bare()
    assert mixture.expect(mixture.follow(mixture.place([1]), 2), 1, 0.0) == ({}, {})


def test_a_warm_table_s_weight_depends_on_how_much_of_the_context_it_knows() -> None:
    mixture = bare(of(FromWarmTable, Warm([5, 4], [0.5, 0.25])))
    weights = mixture.pool.calibration.weights[WARM]
    weights[:] = [(bucket + 1) / 100 for bucket in range(len(weights))]
    for depth in (0, 1, 3):
        for token in (2, 3):  # a context that it does not know, and one that it knows by its last token
            masses, _ = mixture.expect(mixture.place([token]), depth, 0.0)
            assert masses[5] == pytest.approx(weights[warm_bucket(depth_bucket(depth), token % 2)] * 0.5)


# What is learned


@given(**MIXTURES, choice=st.integers(0, 6))
def test_every_stage_that_predicted_learns_from_the_choice(
    seed: int, text: list[int], path: list[int], choice: int
) -> None:
    """The choice's mass grows, what no stage expects included, of which each token has a little."""
    mixture = mixture_of(seed, text)
    place = mixture.place(text)
    for token in path:
        place = mixture.follow(place, token)
    weights, seen = copy.deepcopy((mixture.pool.calibration.weights, mixture.pool.calibration.seen))
    likely, masses = chance(mixture, place, len(path), choice), mixture.expect(place, len(path), 0.0)[0]
    mixture.weigh(place, len(path), choice)
    assert mixture.pool.calibration.seen[WARM] != seen[WARM]
    assert chance(mixture, place, len(path), choice) >= likely - 1e-12
    if choice not in masses:  # the weights of those that predicted fall
        pairs = zip(mixture.pool.calibration.weights, weights, strict=True)
        assert all(new <= old for after, before in pairs for new, old in zip(after, before, strict=True))


def chance(mixture: Mixture, place: Place, depth: int, token: int) -> float:
    """The token's probability in the mixture, at whose end any token may come."""
    weights, left = mixture.pool.calibration.weights, 1.0
    for stage, bucket, _, _ in mixture._shares(place, depth_bucket(depth)):
        left *= 1 - weights[stage][bucket]
    return mixture.expect(place, depth, 0.0)[0].get(token, 0.0) + CALIBRATION.escape * left


# Places


@given(text=TEXTS, more=st.lists(st.integers(0, 9), max_size=8))
def test_a_place_remembers_the_last_tokens_of_the_longer_text(text: list[int], more: list[int]) -> None:
    mixture = bare(of(FromOwnText, OwnText(text)))
    place = mixture.place(text)
    for token in more:
        place = mixture.follow(place, token)
    assert place[0] == mixture.place([*text, *more])[0]
    assert place[0] == tuple([NOTHING] * CONTEXT + text + more)[-CONTEXT:]


@given(seed=st.integers(0, 1000), text=TEXTS, right=st.integers(0, 12))
def test_matches_go_on_token_by_token_and_end_for_good(seed: int, text: list[int], right: int) -> None:
    mixture = mixture_of(seed, text)
    reference, own = mixture.sources[:2]
    assert isinstance(own, FromOwnText)
    assert isinstance(reference, FromReference)
    place = mixture.place(text)
    _, begun = parts(place)
    for went in range(right):
        _, match = parts(place)
        index, length = match or (0, 0)
        place = mixture.follow(place, own.text.at(index) if match else 0)
        in_reference, in_own = parts(place)
        assert in_own == (begun and (index + 1, length + 1))
        if in_reference is not None:
            end, length = reference.begin() or (0, 0)
            assert in_reference == (end + went + 1, length + went + 1)
    place = mixture.follow(place, 9)
    assert parts(place) == (None, None)
    assert parts(mixture.follow(place, 0)) == (None, None)


def parts(place: Place) -> tuple[Any, Any]:
    """Of the reference and of the own text."""
    return (place[1], place[2]) if len(place) > 1 else (None, None)


def test_a_match_of_the_own_text_has_a_least_length() -> None:
    for length in range(1, 5):
        text = [*range(length), 7, 8, *range(length)]
        place = bare(of(FromOwnText, OwnText(text))).place(text)
        assert place[1:] == (((length, length),) if length >= MATCHING.shortest else ())


def test_before_any_output_a_reference_begins() -> None:
    mixture = bare(of(FromReference, ReferenceText([4, 5])))
    place = mixture.place([1])
    assert place[1] == (0, MATCHING.beginning)
    assert mixture.expect(place, 0, 0.0)[0] == {4: 0.5}
    end = mixture.follow(mixture.follow(place, 4), 5)
    assert end[1] == (2, MATCHING.beginning + 2)
    assert mixture.expect(end, 2, 0.0)[0] == {}
    mixture.extend([9])
    assert len(mixture.place([1, 9])) == 1


def test_the_weight_of_a_drafted_match_depends_on_its_length() -> None:
    text = [1, 2, 3, 4, 5, 1, 2]
    mixture = bare(of(FromOwnText, OwnText(text)))
    weights = mixture.pool.calibration.weights[SUFFIX]
    place = mixture.place(text)
    for depth, length in ((0, 2), (1, 3), (2, 4)):
        weights[match_bucket(depth_bucket(depth), length)] = 0.25 + length / 100
        assert mixture.expect(place, depth, 0.0)[0] == {length + 1: 0.25 + length / 100}
        place = mixture.follow(place, length + 1)
