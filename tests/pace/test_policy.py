"""Policies are values: they are replaced as a whole, and what is given decides."""

from dataclasses import FrozenInstanceError, replace

import pytest
from costs import FixedCosts

from lade.pace.controller import Controller
from lade.pace.cost import COST, CostPolicy, StepCost
from lade.pace.curve import KALMAN
from lade.pace.policy import PACE, PacePolicy


def test_policies_are_frozen() -> None:
    for policy, name in ((PACE, "size"), (PACE.rest, "patience"), (COST, "optimism"), (KALMAN.prior, "jump")):
        with pytest.raises(FrozenInstanceError):
            setattr(policy, name, None)
    assert PacePolicy() == PACE
    assert CostPolicy() == COST


def test_the_given_policy_decides() -> None:
    tree = [1.0, 0.2]
    assert Controller(FixedCosts(), 9).choose([tree], 100) == 2
    demanding = replace(PACE, size=replace(PACE.size, start=2.0))
    assert Controller(FixedCosts(), 9, demanding).choose([tree], 100) == 1
    sceptical = replace(PACE, belief=replace(PACE.belief, prior=0.05))
    assert Controller(FixedCosts(), 9, sceptical).choose([tree], 100) == 1


def test_costs_start_from_the_given_prior() -> None:
    steep = replace(COST, kalman=replace(KALMAN, prior=replace(KALMAN.prior, per_token=0.2)))
    assert StepCost(policy=steep).table(16, 100, 1)[16] > 1.5 * StepCost().table(16, 100, 1)[16]
