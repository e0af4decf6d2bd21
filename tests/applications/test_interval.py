"""Medians, ratios of sums, and their bootstrap intervals."""

import pytest

from lade.applications.interval import ENOUGH, Estimate, pooled_median, pooled_rate_ratio, pooled_ratio


def test_the_median_is_over_all_values() -> None:
    assert pooled_median([[1.0, 2.0], [9.0]]).median == 2.0


@pytest.mark.parametrize("count", range(1, ENOUGH))
def test_few_groups_have_no_interval_however_many_values_they_hold(count: int) -> None:
    """All of five lie on one side of their true median 1 in 16 times."""
    assert pooled_median([[4.0] * 50] * count) == Estimate(4.0, None, None, count)
    assert pooled_ratio([(3.0, 4.0)] * count) == Estimate(0.75, None, None, count)


def test_without_an_interval_nothing_is_above_or_below() -> None:
    few, many = Estimate(2.0, None, None, 5), Estimate(2.0, 1.5, 3.0, 6)
    assert not few.above(0)
    assert not few.below(9)
    assert (many.above(1.4), many.above(1.5), many.below(3.0), many.below(3.1)) == (True, False, False, True)


def test_the_interval_resamples_prompts_and_not_their_repeats() -> None:
    """Six prompts of many repeats each: in one draw of 64 all are of the lower three, in one all of the upper."""
    found = pooled_median([[1.0] * 50] * 3 + [[3.0] * 50] * 3)
    assert found == Estimate(2.0, 1.0, 3.0, 6)
    lone = pooled_median([[1.0]] * 5 + [[9.0] * 50])
    assert (lone.low, lone.high) == (1.0, 9.0)


def test_the_interval_narrows_with_more_prompts_and_is_reproducible() -> None:
    values = [1 + index / 100 for index in range(100)]
    few, many = pooled_median([[value] for value in values[::16]]), pooled_median([[value] for value in values])
    assert few == pooled_median([[value] for value in values[::16]])
    assert few.n == 7
    assert few.low is not None
    assert few.high is not None
    assert many.low is not None
    assert many.high is not None
    assert many.high - many.low < few.high - few.low
    # The order statistics that hold the median of 100 with 95% are the 40th and the 61st.
    assert many.low == pytest.approx(1.39, abs=0.03)
    assert many.high == pytest.approx(1.60, abs=0.03)


def test_a_ratio_of_sums_is_not_the_mean_of_ratios() -> None:
    assert pooled_ratio([(1.0, 10.0), (80.0, 90.0)]) == Estimate(0.81, None, None, 2)
    found = pooled_ratio([(1.0, 10.0), (80.0, 90.0)] * 6)
    assert found.median == 0.81
    assert found.low is not None
    assert found.high is not None
    assert 0.1 < found.low < 0.81 < found.high <= 80 / 90
    assert found.n == 12


def test_groups_with_a_whole_of_0_are_ignored_and_alone_are_refused() -> None:
    assert pooled_ratio([(0.0, 0.0)] * 9 + [(1.0, 2.0)]) == Estimate(0.5, None, None, 1)
    assert pooled_ratio([(0.0, 0.0)] * 9 + [(1.0, 2.0)] * 6) == Estimate(0.5, 0.5, 0.5, 6)
    with pytest.raises(ValueError, match="groups must be pairs of which at least one has a whole above 0, got "):
        pooled_ratio([(0.0, 0.0)])


def test_a_ratio_of_pooled_rates() -> None:
    """Tokens per step of one system over those of another, which may write other texts."""
    groups = [((100.0, 50.0), (80.0, 80.0)), ((20.0, 10.0), (40.0, 20.0))]  # 2 over 1, and 2 over 2
    assert pooled_rate_ratio(groups) == Estimate(pytest.approx(2 / 1.2), None, None, 2)
    found = pooled_rate_ratio(groups * 6)
    assert found.median == pytest.approx(2 / 1.2)
    assert found.low is not None
    assert found.high is not None
    assert 1 <= found.low < 2 / 1.2 < found.high <= 2
    assert pooled_rate_ratio(groups[:1] * 6) == Estimate(2.0, 2.0, 2.0, 6)


@pytest.mark.parametrize("groups", [[], [((1.0, 0.0), (1.0, 1.0))], [((1.0, 1.0), (0.0, 1.0))]])
def test_a_rate_of_nothing_is_refused(groups: list[tuple[tuple[float, float], tuple[float, float]]]) -> None:
    with pytest.raises(ValueError, match="groups must be pairs of an amount and a count above 0, got "):
        pooled_rate_ratio(groups)
