"""The registry of sources: order, names, buckets and priors fit together; a new source is one class and one row."""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pytest
from families import BRANCHABLE
from tiny import tiny_model

from lade import LookaheadConfig
from lade.config.settings import FAMILIES
from lade.core.request import Request, Verdict
from lade.drafters.blend import BlendDrafter
from lade.memory import sources
from lade.memory.counts import FollowerCounts
from lade.memory.pools import Pool, drop_pools, fresh_pool, load_pool, save_pool, shared_pool
from lade.memory.recycle import CONTEXT, LENGTHS, Context, Entry
from lade.memory.source import DEPTHS, Share, Source, Stage, Start, by_depth, depth_bucket
from lade.memory.sources import (
    GRAMS,
    MATCHES,
    SOURCES,
    FromCounts,
    FromOwnText,
    FromPredictions,
    FromReference,
    FromShortCounts,
    FromWindow,
    gram_bucket,
    match_bucket,
    opened,
    prior_calibration,
    stages,
)
from lade.memory.warmsource import FromWarmTable, warm_bucket

DEEP, LONG = range(40), range(1, 200)


def test_every_source_has_its_place() -> None:
    recycled = [f"recycled-{length}" for length in LENGTHS]
    names = ["reference", "suffix", "window", "counts", *recycled, "warm", "counts-1", "recent"]
    assert [stage.name for stage in stages()] == names
    assert {source.setting for source in SOURCES} >= set(FAMILIES)  # each name of the setting
    assert tuple(sorted(LENGTHS, reverse=True)) == LENGTHS  # the most specific first


def test_every_bucket_has_a_prior_and_is_used() -> None:
    depths = {depth_bucket(depth) for depth in DEEP}
    matches = {match_bucket(depth, length) for depth in depths for length in LONG}
    grams = {gram_bucket(depth, length) for depth in depths for length in LONG}
    warm = {warm_bucket(depth, length) for depth in depths for length in range(CONTEXT + 1)}
    for source, buckets in (
        (FromReference, matches),
        (FromOwnText, matches),
        (FromWindow, grams),
        (FromPredictions, depths),
        (FromWarmTable, warm),
    ):
        assert all(buckets == set(range(len(stage.priors))) for stage in source.stages)
    sizes = DEPTHS * MATCHES, DEPTHS * GRAMS, DEPTHS, DEPTHS * (CONTEXT + 1)
    assert (len(matches), len(grams), len(depths), len(warm)) == sizes


@pytest.mark.parametrize("source", [FromCounts, FromShortCounts])
def test_counts_have_a_bucket_per_depth_and_length(source: type[FromCounts]) -> None:
    text = [1, 2, 3, 4, 5, 1, 2, 3, 4, 5]
    counts = source(0, FollowerCounts(text))
    contexts = [(9, 9, 9, 4), (9, 9, 3, 4), (9, 2, 3, 4), (1, 2, 3, 4)]
    found = [[bucket for _, bucket, _, _ in counts.expect(each, depth)] for depth in range(DEPTHS) for each in contexts]
    assert list(dict.fromkeys(chain.from_iterable(found))) == list(range(len(source.stages[0].priors)))


def test_both_sources_of_counts_share_them() -> None:
    """The text is counted once, and what it grows by too."""
    start = Start(LookaheadConfig().settled(), [1, 2, 3, 1], 4, fresh_pool().table)
    found = [source for source in opened(start) if isinstance(source, FromCounts)]
    assert [type(source) for source in found] == [FromCounts, FromShortCounts]
    assert found[0].counts is found[1].counts
    for source in found:
        source.extend([2, 3, 1])
    assert found[0].counts._counts == FollowerCounts([1, 2, 3, 1, 2, 3, 1])._counts


def test_where_buckets_begin() -> None:
    assert [depth for depth in DEEP[1:] if depth_bucket(depth) != depth_bucket(depth - 1)] == [1, 3]
    assert [n for n in LONG[1:] if match_bucket(0, n) != match_bucket(0, n - 1)] == [2, 4, 8, 16, 32]
    assert [n for n in LONG[1:] if gram_bucket(0, n) != gram_bucket(0, n - 1)] == [2, 3]


def test_priors_are_weights_and_longer_matches_have_larger_ones() -> None:
    assert all(0 < weight < 1 for stage in stages() for weight in stage.priors)
    for stage in (*FromReference.stages, *FromOwnText.stages):
        for depth in range(DEPTHS):
            of_lengths = stage.priors[depth * MATCHES : (depth + 1) * MATCHES]
            assert all(short < long for short, long in pairwise(of_lengths))


def test_calibrations_begin_with_the_priors_and_share_nothing() -> None:
    one, other, priors = prior_calibration(), prior_calibration(), [list(stage.priors) for stage in stages()]
    assert one.weights == other.weights == priors
    one.learn([(0, 0, 1.0)])
    assert one.weights != other.weights
    assert other.weights == priors
    assert one.weights[0][0] > priors[0][0]


@pytest.mark.parametrize("bucket", [match_bucket, gram_bucket])
def test_buckets_of_depths_do_not_mix(bucket: Callable[[int, int], int]) -> None:
    root, near, far = ({bucket(depth_bucket(depth), count) for count in LONG} for depth in (0, 1, 3))
    assert not root & near
    assert not near & far
    assert not root & far


# A source of one's own


class Counting(Source):
    """Predicts that tokens count up; its part of a place is how many have done so on this path."""

    setting = "counting"
    stages = (Stage("counting", by_depth(0.25, 0.5)),)
    tracks = learns = True
    learned: Sequence[tuple[Context, Entry]] = ()
    text: tuple[int, ...] = ()

    def begin(self) -> tuple[int, int]:
        return self.text[-1] if self.text else 10, 0

    def follow(self, part: tuple[int, int], token: int) -> tuple[int, int] | None:
        last, count = part
        return (token, count + 1) if token == last + 1 else None

    def expect(self, part: tuple[int, int], depth: int) -> Iterable[Share]:
        last, count = part
        return [(self.first, 2 * depth + min(count, 1), [last + 1], [1.0])]

    def extend(self, tokens: Sequence[int]) -> None:
        self.text += tuple(tokens)

    def learn(self, predictions: Sequence[tuple[Context, Entry]]) -> None:
        self.learned = predictions


class Predictions:
    """A model that finds 7 a little likely after everything."""

    def greedy(self, slot: int, node: int) -> int:
        return 7

    def top(self, slot: int, node: int) -> tuple[list[int], list[float]]:
        return [7], [0.05]


@pytest.fixture(params=[0, 3, len(SOURCES)])
def at(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The index of the stage that one more row of the registry brings."""
    drop_pools()
    monkeypatch.setattr(sources, "SOURCES", (*SOURCES[: request.param], Counting, *SOURCES[request.param :]))
    return [stage.name for stage in stages()].index("counting")


def started(pool: Pool, *tokens: int, **config: Any) -> tuple[BlendDrafter, Request]:
    drafter = BlendDrafter(LookaheadConfig(**config).settled(), 4, pool=lambda _: pool)
    request = Request(0, list(tokens), len(tokens) - 1, 100)
    drafter.start(request)
    return drafter, request


def test_a_new_row_is_drafted_from_and_calibrated(at: int) -> None:
    model = tiny_model(BRANCHABLE[0])
    pool = shared_pool(model, "anna")
    drafter, request = started(pool, 5, 10)
    draft = drafter.draft([request], [9])[0]
    assert (draft.tokens, draft.sources) == ([10, 11, 12, 13], ["root", *["counting"] * 3])
    request.tokens += [11, 12, 30]
    drafter.observe([request], [draft], [Verdict([0, 1, 2], [11, 12, 30])], Predictions())
    weights = pool.calibration.weights[at]
    # Right after the root and at depth 1, wrong at depth 2.
    assert weights[0] > 0.25
    assert weights[1] == 0.5
    counting = next(source for source in request.state.mixture.sources if isinstance(source, Counting))
    assert [context[-1] for context, _ in counting.learned] == [13, 10, 11, 12]  # the accepted path last
    assert drafter.draft([request], [9])[0].tokens[:2] == [30, 31]


def test_a_new_row_is_left_out_where_others_are_named(at: int) -> None:
    drafter, request = started(fresh_pool(), 5, 10, sources=("suffix", "recycled"))
    assert len(drafter.draft([request], [9])[0]) == 1


def test_a_new_row_is_saved_and_loaded(at: int, tmp_path: Path) -> None:
    model = tiny_model(BRANCHABLE[0])
    pool = shared_pool(model, "anna")
    pool.calibration.learn([(at, 1, 1.0)])
    save_pool(model, tmp_path / "pool", tenant="anna")
    load_pool(model, tmp_path / "pool", tenant="bert")
    loaded = shared_pool(model, "bert").calibration
    assert loaded.weights[at][1] > Counting.stages[0].priors[1]
    assert (loaded.weights, loaded.seen) == (pool.calibration.weights, pool.calibration.seen)


@pytest.mark.parametrize("position", [0, 3, len(SOURCES)])
def test_a_pool_saved_before_a_row_was_added_still_loads(
    position: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new source starts from its priors, the others keep what they learned; the other way round it is refused."""
    model, path = tiny_model(BRANCHABLE[0]), tmp_path / "pool"
    before = shared_pool(model, "before").calibration
    before.learn([(stage, 0, 0.9) for stage in range(len(stages()))])
    known = {stage.name: before.weights[index] for index, stage in enumerate(stages())}
    save_pool(model, path, tenant="before")
    with monkeypatch.context() as patch:
        patch.setattr(sources, "SOURCES", (*SOURCES[:position], Counting, *SOURCES[position:]))
        load_pool(model, path, tenant="after")
        after = shared_pool(model, "after").calibration
        known["counting"] = list(Counting.stages[0].priors)
        assert after.weights == [known[stage.name] for stage in stages()]
        save_pool(model, path, tenant="after")
    with pytest.raises(ValueError, match="counting"):
        load_pool(model, path, tenant="before")
    drop_pools()
