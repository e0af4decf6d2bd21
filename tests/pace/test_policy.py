"""Policies are values: they are replaced as a whole, and what is given decides."""

from dataclasses import FrozenInstanceError, replace

import pytest
from costs import FixedCosts

from lade.pace.cost import COST, CostPolicy, StepCost
from lade.pace.curve import KALMAN
from lade.pace.pace import Pace
from lade.pace.policy import PACE, PacePolicy
from lade.pace.sharing import Row


def test_policies_are_frozen() -> None:
    for policy, name in ((PACE, "size"), (PACE.rest, "patience"), (COST, "optimism"), (KALMAN.prior, "jump")):
        with pytest.raises(FrozenInstanceError):
            setattr(policy, name, None)
    assert PacePolicy() == PACE
    assert CostPolicy() == COST


def test_the_given_policy_decides() -> None:
    assert chosen(PACE) == [2]
    assert chosen(replace(PACE, size=replace(PACE.size, start=2.0))) == [1]
    assert chosen(replace(PACE, belief=replace(PACE.belief, prior=0.05))) == [1]


def chosen(policy: PacePolicy) -> list[int]:
    pace = Pace(FixedCosts(), 9, policy=policy)  # type: ignore[arg-type]
    belief = pace.start()
    assert pace.begin([100], [belief]) == 9
    return pace.choose([Row([1.0, 0.2], belief)])


def test_costs_start_from_the_given_prior() -> None:
    steep = replace(COST, kalman=replace(KALMAN, prior=replace(KALMAN.prior, per_token=0.2)))
    assert StepCost(policy=steep).table(16, 100, 1)[16] > 1.5 * StepCost().table(16, 100, 1)[16]
