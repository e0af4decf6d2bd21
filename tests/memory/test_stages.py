"""The stages: order, names, buckets and priors fit together."""

from itertools import pairwise
from pathlib import Path

import pytest
from families import BRANCHABLE
from tiny import tiny_model

from lade.config.settings import FAMILIES
from lade.memory import poolfile
from lade.memory.calibration import Calibration
from lade.memory.context import CONTEXT, LENGTHS
from lade.memory.evidence import MOST, bucket_of
from lade.memory.pools import drop_pools, load_pool, save_pool, shared_pool
from lade.memory.predictions import TOP
from lade.memory.recent import OFFERED
from lade.memory.stages import (
    BUCKETS,
    COUNTED,
    DEPTHS,
    GRAMS,
    LONG,
    MATCHES,
    MISMATCHES,
    NAMES,
    STAGES,
    WARM,
    depth_bucket,
    match_bucket,
)


def test_every_source_has_its_place() -> None:
    recycled = [f"recycled-{length}" for length in LENGTHS]
    assert [*NAMES] == [
        "reference",
        "suffix",
        "mismatch",
        "corpus",
        "window",
        "counts",
        *recycled,
        "kept",
        "corpus-often",
        "warm",
        "siblings",
        "counts-1",
        "recent",
    ]
    assert {stage.source for stage in STAGES} >= set(FAMILIES)  # each name of the setting
    assert tuple(sorted(LENGTHS, reverse=True)) == LENGTHS  # the most specific first


def test_every_bucket_has_a_place_of_its_own() -> None:
    """One per depth bucket and what the stage tells apart."""
    sizes = (
        MATCHES,
        MATCHES,
        MISMATCHES,
        2 * MATCHES,
        GRAMS,
        COUNTED,
        1,
        1,
        1,
        1,
        CONTEXT,
        MATCHES,
        CONTEXT + 1,
        1,
        1,
        1,
    )
    assert tuple(len(stage.priors) for stage in STAGES) == sizes
    places = [
        bucket_of(stage, depth, bucket)
        for stage, size in enumerate(sizes)
        for depth in (0, 1, 3)
        for bucket in range(size)
    ]
    assert places == [*range(BUCKETS)]
    assert len({depth_bucket(depth) for depth in range(40)}) == DEPTHS


def test_where_buckets_begin() -> None:
    assert [depth for depth in range(1, 40) if depth_bucket(depth) != depth_bucket(depth - 1)] == [1, 3]
    assert [n for n in range(2, 200) if match_bucket(n) != match_bucket(n - 1)] == [2, 4, 8, 16, LONG]
    assert (match_bucket(1), match_bucket(LONG)) == (0, MATCHES - 1)


def test_priors_are_weights_and_longer_matches_have_larger_ones() -> None:
    assert all(0 < weight < 1 for stage in STAGES for weight in stage.priors)
    for stage in STAGES[:3]:
        assert all(short < long for short, long in pairwise(stage.priors))


def test_there_is_room_for_all_that_stages_predict_together() -> None:
    assert OFFERED + 3 + TOP * (len(STAGES) - 4) <= MOST


@pytest.mark.parametrize("added", [0, 4, WARM, len(STAGES) - 1])
def test_a_pool_saved_before_a_stage_was_added_still_loads(
    added: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new stage starts from its priors, the others keep what they learned; the other way round it is refused."""
    drop_pools()
    model, path = tiny_model(BRANCHABLE[0]), tmp_path / "pool"
    before = shared_pool(model, "before").calibration
    before.numbers[:] += 0.001
    known = [*before.weights]
    known[added] = shared_pool(model, "fresh").calibration.weights[added]
    with monkeypatch.context() as patch:  # as if its row were not in the table
        patch.setattr(poolfile, "NAMES", (*NAMES[:added], *NAMES[added + 1 :]))
        patch.setattr(poolfile, "Calibration", lambda: _Without(before, added))
        save_pool(model, path, tenant="before")
    load_pool(model, path, tenant="after")
    after = shared_pool(model, "after").calibration
    assert [stage.tolist() for stage in after.weights] == [stage.tolist() for stage in known]
    save_pool(model, path, tenant="after")
    with monkeypatch.context() as patch:
        patch.setattr(poolfile, "NAMES", (*NAMES[:added], *NAMES[added + 1 :]))
        with pytest.raises(ValueError, match=NAMES[added]):
            load_pool(model, path, tenant="before")
    drop_pools()


class _Without:
    """A calibration without one stage."""

    def __init__(self, calibration: Calibration, stage: int) -> None:
        self.weights, self.seen = [*calibration.weights], [*calibration.seen]
        del self.weights[stage], self.seen[stage]
