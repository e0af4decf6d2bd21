"""The sources' order, their buckets and their priors fit together."""

from collections.abc import Callable
from itertools import pairwise

import pytest

from lade.config.settings import FAMILIES
from lade.memory.recycle import CONTEXT, LENGTHS
from lade.memory.stages import (
    DEPTHS,
    GRAMS,
    MATCHES,
    PRIORS,
    RECYCLED,
    REFERENCE,
    SOURCES,
    SUFFIX,
    WARM,
    WINDOW,
    depth_bucket,
    gram_bucket,
    match_bucket,
    prior_calibration,
    warm_bucket,
)

DEEP, LONG = range(40), range(1, 200)


def test_every_source_has_its_place() -> None:
    assert [SOURCES[stage] for stage in (REFERENCE, SUFFIX, WINDOW, WARM)] == ["reference", "suffix", "window", "warm"]
    assert SOURCES[RECYCLED:WARM] == tuple(f"recycled-{length}" for length in LENGTHS)
    assert {source.split("-")[0] for source in SOURCES} == set(FAMILIES)
    assert len(set(SOURCES)) == len(SOURCES) == len(PRIORS)
    assert tuple(sorted(LENGTHS, reverse=True)) == LENGTHS  # the most specific first


def test_every_bucket_has_a_prior_and_is_used() -> None:
    depths = {depth_bucket(depth) for depth in DEEP}
    matches = {match_bucket(depth, length) for depth in depths for length in LONG}
    grams = {gram_bucket(depth, length) for depth in depths for length in LONG}
    assert matches == set(range(len(PRIORS[REFERENCE]))) == set(range(len(PRIORS[SUFFIX])))
    assert grams == set(range(len(PRIORS[WINDOW])))
    assert all(depths == set(range(len(PRIORS[stage]))) for stage in range(RECYCLED, WARM))
    assert {warm_bucket(depth, length) for depth in depths for length in range(CONTEXT + 1)} == set(
        range(len(PRIORS[WARM]))
    )
    assert (len(matches), len(grams), len(depths)) == (DEPTHS * MATCHES, DEPTHS * GRAMS, DEPTHS)
    assert len(PRIORS[WARM]) == DEPTHS * (CONTEXT + 1)


def test_where_buckets_begin() -> None:
    assert [depth for depth in DEEP[1:] if depth_bucket(depth) != depth_bucket(depth - 1)] == [1, 3]
    assert [n for n in LONG[1:] if match_bucket(0, n) != match_bucket(0, n - 1)] == [2, 4, 8, 16, 32]
    assert [n for n in LONG[1:] if gram_bucket(0, n) != gram_bucket(0, n - 1)] == [2, 3]


def test_priors_are_weights_and_longer_matches_are_believed_more() -> None:
    assert all(0 < weight < 1 for stage in PRIORS for weight in stage)
    for stage in (REFERENCE, SUFFIX):
        for depth in range(DEPTHS):
            of_lengths = PRIORS[stage][depth * MATCHES : (depth + 1) * MATCHES]
            assert all(short < long for short, long in pairwise(of_lengths))


def test_calibrations_begin_with_the_priors_and_share_nothing() -> None:
    one, other = prior_calibration(), prior_calibration()
    assert one.weights == other.weights == [list(stage) for stage in PRIORS]
    one.learn([(REFERENCE, 0, 1.0)])
    assert one.weights != other.weights
    assert other.weights == [list(stage) for stage in PRIORS]
    assert one.weights[REFERENCE][0] > PRIORS[REFERENCE][0]


@pytest.mark.parametrize("bucket", [match_bucket, gram_bucket])
def test_buckets_of_depths_do_not_mix(bucket: Callable[[int, int], int]) -> None:
    root, near, far = ({bucket(depth_bucket(depth), count) for count in LONG} for depth in (0, 1, 3))
    assert not root & near
    assert not near & far
    assert not root & far
