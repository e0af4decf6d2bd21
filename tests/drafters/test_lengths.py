"""How many tokens a draft model drafts."""

import pytest

from lade.drafters.lengths import LENGTHS, ByAcceptance, ByConfidence, Fixed


def test_fixed_stays() -> None:
    length = Fixed(4, 0.5)
    length.update(4, 0)
    assert (length.limit(), length.continues(0.0), length.needs_confidence) == (4, True, False)


def test_acceptance_moves_the_number() -> None:
    length, limits = ByAcceptance(3, 0.5), []
    for accepted in ("all", "all", "all", "all", 0, 0, 0, 0, 0, 0, 0):
        length.update(length.limit(), length.limit() if accepted == "all" else 0)
        limits.append(length.limit())
    assert limits == [5, 6, 6, 6, 5, 4, 3, 2, 1, 1, 1]


def test_a_draft_cut_short_by_the_end_tells_nothing() -> None:
    length = ByAcceptance(4, 0.5)
    length.update(2, 2)
    assert length.limit() == 4


def test_confidence_stops_behind_an_unsure_token() -> None:
    length = ByConfidence(8, 0.5)
    assert (length.limit(), length.continues(0.5), length.continues(0.49), length.needs_confidence) == (
        8,
        True,
        False,
        True,
    )


@pytest.mark.parametrize(("accepted", "threshold"), [(0, 0.51), (4, 0.49)])
def test_the_threshold_follows_acceptance(accepted: int, threshold: float) -> None:
    length = ByConfidence(8, 0.5)
    length.update(4, accepted)
    assert length.threshold == pytest.approx(threshold)


def test_the_threshold_stays_a_probability() -> None:
    for accepted, bound in ((0, 0.99), (4, 0.0)):
        length = ByConfidence(8, 0.5)
        for _ in range(200):
            length.update(4, accepted)
        assert length.threshold == pytest.approx(bound)


def test_every_way_has_a_row() -> None:
    assert {name: type(make(3, 0.5)) for name, make in LENGTHS.items()} == {
        "fixed": Fixed,
        "acceptance": ByAcceptance,
        "confidence": ByConfidence,
    }
