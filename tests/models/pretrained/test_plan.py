"""The learning rate over a run, and budgets by steps or by the clock."""

import pytest

from lade.models.pretrained.plan import DECAY, WARM_UP, Budget, Plan, rate


def test_the_rate_rises_stays_and_falls_to_nothing() -> None:
    assert 0 < rate(0) < rate(WARM_UP / 2) < rate(WARM_UP) == rate(1 - DECAY) == 1
    assert rate(1 - DECAY / 2) == pytest.approx(0.5)
    assert rate(1) == 0


def test_budgets_end_by_steps_or_by_the_clock() -> None:
    assert Budget(steps=4).progress(1, 1e9) == 0.25
    assert Budget(minutes=2).progress(10**9, 30) == 0.25
    assert Budget(minutes=2).progress(0, 1e9) == 1


@pytest.mark.parametrize(("steps", "minutes"), [(None, None), (1, 1.0), (0, None), (None, 0.0)])
def test_a_budget_is_one_positive_number(steps: int | None, minutes: float | None) -> None:
    with pytest.raises(ValueError, match=r"steps|minutes"):
        Budget(steps, minutes)


def test_a_plan_names_what_is_wrong() -> None:
    with pytest.raises(ValueError, match="length must be more than 0, got 0"):
        Plan(Budget(steps=1), length=0)
    with pytest.raises(ValueError, match="micro_rows must be a divisor of rows=8, got 5"):
        Plan(Budget(steps=1), rows=8, micro_rows=5)
