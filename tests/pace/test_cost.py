"""Costs of steps, learned from noisy times, with outliers, and on a machine that changes."""

import math
import random
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lade.pace.cost import COST, CostPolicy, StepCost
from lade.pace.knots import KNOTS, WIDEST
from lade.pace.prior import PRIOR

CONTEXT, ROWS = 100, 1
MEAN = CostPolicy(optimism=0.0)  # tells the mean
WIDTHS = (1, 4, 8, 16, 24, 32, 48, 64)
# Seconds over those of width 1, measured: a 130M model in float32 and in bfloat16; and a large device.
CURVES = {
    "steep": (1, 1.53, 1.53, 1.76, 2.07, 2.39, 3.02, 3.65),
    "even": (1, 1.0, 1.05, 1.15, 1.35, 1.56, 1.90, 2.20),
    "flat": (1, 1.01, 1.01, 1.01, 1.02, 1.03, 1.05, 1.08),
}
STEPS = st.lists(
    st.tuples(
        st.integers(1, 2000),
        st.integers(1, 10**6),
        st.integers(1, 40),
        st.floats(1e-6, 1e4) | st.sampled_from([0.0, -1.0, math.inf, math.nan]),
    ),
    max_size=60,
)


def decode(
    cost: StepCost,
    curve: Sequence[float],
    steps: int,
    *,
    noise: float = 0.0,
    seed: int = 0,
    context: int = CONTEXT,
    speed: Callable[[int], float] = lambda step: 0.01,
) -> StepCost:
    """Steps of random widths with lognormal noise."""
    generator = random.Random(seed)
    for step in range(steps):
        index = generator.randrange(len(WIDTHS))
        cost.observe(WIDTHS[index], context, ROWS, curve[index] * speed(step) * math.exp(generator.gauss(0, noise)))
    return cost


def relative(cost: StepCost, tokens: int, context: int, rows: int) -> float:
    """Cost of a step over that of one token per row."""
    width = -(-tokens // rows)
    return cost.table(width, context, rows)[width]


def ratios(cost: StepCost, context: int = CONTEXT) -> list[float]:
    return [relative(cost, width, context, ROWS) for width in WIDTHS]


def furthest(found: Sequence[float], expected: Sequence[float]) -> float:
    return max(abs(one / other - 1) for one, other in zip(found, expected, strict=True))


@given(STEPS, st.integers(1, 600), st.integers(1, 40))
def test_costs_never_fall_and_stay_finite(steps: list[tuple[int, int, int, float]], limit: int, rows: int) -> None:
    cost = StepCost()
    for tokens, context, batch, seconds in steps:
        cost.observe(tokens, context, batch, seconds)
    for context in (1, 3000):
        table = cost.table(limit, context, rows)
        assert len(table) == limit + 1
        assert table[:2] == [1.0, 1.0]
        assert all(one <= other * (1 + 1e-12) for one, other in pairwise(table))
        assert all(map(math.isfinite, table))


@given(STEPS.filter(bool), st.floats(1e-3, 1e3))
def test_a_slower_machine_has_the_same_ratios(steps: list[tuple[int, int, int, float]], factor: float) -> None:
    one, other = StepCost(), StepCost()
    for tokens, context, rows, seconds in steps:
        one.observe(tokens, context, rows, seconds)
        other.observe(tokens, context, rows, seconds * factor)
    _, context, rows, _ = steps[-1]
    assert other.table(64, context, rows) == pytest.approx(one.table(64, context, rows), rel=1e-6)


@pytest.mark.parametrize("name", CURVES)
def test_a_curve_is_learned_from_noisy_steps(name: str) -> None:
    runs = [decode(StepCost(policy=MEAN), CURVES[name], 60, noise=0.03, seed=seed) for seed in range(10)]
    assert sum(furthest(ratios(cost), CURVES[name]) for cost in runs) / len(runs) < 0.05


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("factor", [5, 50, 1 / 50])
def test_one_outlier_moves_little(width: int, factor: float) -> None:
    cost = decode(StepCost(policy=MEAN), CURVES["steep"], 60, noise=0.05)
    before = ratios(cost)
    cost.observe(width, CONTEXT, ROWS, 0.01 * factor * before[WIDTHS.index(width)])
    assert furthest(ratios(cost), before) < 0.02


def test_an_outlier_at_the_start_is_forgotten() -> None:
    cost = StepCost(policy=MEAN)
    cost.observe(1, CONTEXT, ROWS, 0.5)
    assert furthest(ratios(decode(cost, CURVES["steep"], 60, noise=0.03)), CURVES["steep"]) < 0.1


def test_outliers_move_costs_little() -> None:
    cost = decode(
        StepCost(policy=MEAN), CURVES["steep"], 200, noise=0.03, speed=lambda step: 0.01 * (5 if step % 40 == 7 else 1)
    )
    assert furthest(ratios(cost), CURVES["steep"]) < 0.08


@pytest.mark.parametrize("factor", [0.5, 1.3, 2.0, 10.0])
def test_a_machine_that_changes_its_speed_keeps_its_ratios(factor: float) -> None:
    for seed in range(5):
        cost = decode(StepCost(policy=MEAN), CURVES["steep"], 80, noise=0.03, seed=seed)
        before = ratios(cost)
        for steps in (1, 2, 3, 20):
            decode(cost, CURVES["steep"], steps, noise=0.03, seed=steps, speed=lambda _: 0.01 * factor)
            assert furthest(ratios(cost), before) < 0.06


def test_a_machine_whose_speed_drifts_keeps_its_ratios() -> None:
    cost = decode(
        StepCost(policy=MEAN), CURVES["even"], 300, noise=0.03, speed=lambda step: 0.01 * math.exp(step / 100)
    )
    assert furthest(ratios(cost), CURVES["even"]) < 0.08


@pytest.mark.parametrize(("old", "new"), [("steep", "flat"), ("flat", "steep"), ("even", "steep")])
def test_a_lasting_change_of_the_shape_is_learned(old: str, new: str) -> None:
    errors = []
    for seed in range(10):
        cost = decode(StepCost(policy=MEAN), CURVES[old], 100, noise=0.03, seed=seed)
        errors.append(furthest(ratios(decode(cost, CURVES[new], 30, noise=0.03, seed=seed + 1)), CURVES[new]))
    assert sorted(errors)[5] < 0.1  # widths are drawn at random: one may not be drawn at all


def test_a_change_of_the_shape_is_learned_from_blocks_of_one_width() -> None:
    cost = decode(StepCost(policy=MEAN), CURVES["even"], 100, noise=0.03)
    for _ in range(3):
        for width, seconds in ((32, 0.03), (1, 0.01)):
            for _ in range(5):
                cost.observe(width, CONTEXT, ROWS, seconds)
    assert relative(cost, 32, CONTEXT, ROWS) == pytest.approx(3.0, rel=0.1)


def test_without_any_step_costs_are_the_prior_mean() -> None:
    assert ratios(StepCost(policy=MEAN)) == pytest.approx([math.exp(PRIOR.log_cost(width)) for width in WIDTHS])


def test_costs_of_wider_steps_are_extrapolated_by_the_slope() -> None:
    cost = StepCost(policy=MEAN)
    for _ in range(20):
        for width in (1, 4, 8, 16):
            cost.observe(width, CONTEXT, ROWS, 0.01 * (1 + 0.1 * (width - 1)))
    assert relative(cost, 32, CONTEXT, ROWS) == pytest.approx(4.1, rel=0.25)
    assert relative(cost, 2 * WIDEST, CONTEXT, ROWS) > 1.5 * relative(cost, WIDEST, CONTEXT, ROWS)


@pytest.mark.parametrize("growth", [0.0, 0.35, 0.7])
def test_numbers_of_rows_share_a_curve(growth: float) -> None:
    """Though a step of 16 rows takes longer than one of 9, and both widths are those of other numbers of rows."""
    cost, curve, generator = StepCost(policy=MEAN), {1: 1.0, 2: 1.5, 4: 2.2}, random.Random(0)
    for step in range(400):
        rows = 9 + step % 8
        width = generator.choice((2, 4) if rows < 13 else (1, 1, 2))
        level = 0.01 * math.exp(growth * math.log2(rows / 16)) * math.exp(generator.gauss(0, 0.03))
        cost.observe(rows * width, CONTEXT, rows, level * curve[width])
    for rows in (9, 16):
        assert relative(cost, 2 * rows, CONTEXT, rows) == pytest.approx(1.5, rel=0.06)
        assert relative(cost, 4 * rows, CONTEXT, rows) == pytest.approx(2.2, rel=0.06)


def test_first_steps_are_slower() -> None:
    """Where most steps of one token per row are the first after a request has joined."""
    cost, curve, generator = StepCost(policy=MEAN), {1: 1.0, 4: 2.2}, random.Random(0)
    for step in range(400):
        first = step % 4 == 0
        width = generator.choice((1, 1, 1, 4) if first else (4, 4, 4, 4, 4, 4, 4, 1))
        seconds = 0.01 * curve[width] * (1.4 if first else 1.0) * math.exp(generator.gauss(0, 0.03))
        cost.observe(width, CONTEXT, ROWS, seconds, first)
    assert relative(cost, 4, CONTEXT, ROWS) == pytest.approx(2.2, rel=0.05)


def test_costs_are_learned_from_rows_of_different_sizes() -> None:
    """A step of packed rows has a number of tokens that its rows need not divide."""
    cost = StepCost(policy=MEAN)
    for tokens in (*range(8, 40), *range(8, 40)):
        cost.observe(tokens, CONTEXT, 8, 0.01 * (1 + 0.02 * (tokens - 8)))
    assert [cost.table(4, CONTEXT, 8)[width] for width in (2, 4)] == pytest.approx([1.16, 1.48], rel=0.03)
    assert cost.known(39, CONTEXT, 8)


def test_a_few_steps_of_two_widths_are_enough() -> None:
    cost = StepCost(policy=MEAN)
    for _ in range(4):
        cost.observe(1, CONTEXT, ROWS, 0.01)
        cost.observe(32, CONTEXT, ROWS, 0.03)
    assert relative(cost, 32, CONTEXT, ROWS) == pytest.approx(3.0, rel=0.1)


def test_a_longer_context_starts_from_a_known_curve() -> None:
    cost = decode(StepCost(policy=MEAN), CURVES["steep"], 100, noise=0.03)
    assert furthest(ratios(cost, 1000), ratios(cost)) < 0.01
    assert cost.known(32, 1000, ROWS)
    decode(cost, CURVES["flat"], 60, noise=0.03, context=1000)
    assert furthest(ratios(cost, 1000), CURVES["flat"]) < 0.1
    assert furthest(ratios(cost), CURVES["steep"]) < 0.1


def test_more_rows_start_from_the_costs_of_as_many_tokens() -> None:
    cost = decode(StepCost(policy=MEAN), CURVES["steep"], 100, noise=0.03)
    expected = relative(cost, 32, CONTEXT, 1) / relative(cost, 4, CONTEXT, 1)
    assert relative(cost, 32, CONTEXT, 4) == pytest.approx(expected)
    assert not cost.known(32, CONTEXT, 4)


@pytest.mark.parametrize("curve", CURVES.values())
def test_earlier_costs_are_outweighed_by_a_few_steps(curve: Sequence[float]) -> None:
    for earlier in CURVES.values():
        cost = StepCost(decode(StepCost(policy=MEAN), earlier, 200).logs(), MEAN)
        assert furthest(ratios(cost), earlier) < 0.05
        for _ in range(3):
            for width, ratio in zip(WIDTHS, curve, strict=True):
                cost.observe(width, CONTEXT, ROWS, 0.01 * ratio)
        assert furthest(ratios(cost), curve) < 0.08


def test_timed_widths_are_known_until_the_times_are_old() -> None:
    cost = StepCost(policy=MEAN)
    assert not cost.known(32, CONTEXT, ROWS)
    for _ in range(3):
        cost.observe(32, CONTEXT, ROWS, 0.02)
    assert cost.known(30, CONTEXT, ROWS)
    assert not cost.known(1, CONTEXT, ROWS)
    for _ in range(COST.within):
        cost.observe(1, CONTEXT, ROWS, 0.01)
    assert not cost.known(32, CONTEXT, ROWS)


def test_a_table_is_kept_until_it_matters() -> None:
    cost = decode(StepCost(policy=MEAN), CURVES["even"], 100)
    table = cost.table(64, CONTEXT, ROWS)
    assert cost.table(64, CONTEXT, ROWS) is table
    decode(cost, CURVES["even"], 1)
    assert cost.table(64, CONTEXT, ROWS) is table
    decode(cost, CURVES["steep"], 30)
    assert cost.table(64, CONTEXT, ROWS)[64] > 1.2 * table[64]


@pytest.mark.parametrize(("tokens", "seconds"), [(WIDEST + 1, 0.01), (8, 0.0), (8, -1.0), (8, math.inf), (8, math.nan)])
def test_some_steps_are_ignored(tokens: int, seconds: float) -> None:
    cost = decode(StepCost(policy=MEAN), CURVES["even"], 20)
    before = cost.logs()
    cost.observe(tokens, CONTEXT, ROWS, seconds)
    assert cost.logs() == before
    assert all(len(logs) == len(KNOTS) - 1 for logs in before.values())


def test_costs_of_one_row_are_lower_confidence_bounds() -> None:
    bound, mean = StepCost(), StepCost(policy=MEAN)
    for cost in (bound, mean):
        for _ in range(50):
            for width in (1, 8):
                cost.observe(width, CONTEXT, ROWS, 0.01 if width == 1 else 0.015)
    assert relative(bound, 8, CONTEXT, ROWS) == pytest.approx(1.5, rel=0.05)
    assert relative(bound, 32, CONTEXT, ROWS) < 0.9 * relative(mean, 32, CONTEXT, ROWS)
    for cost in (bound, mean):
        for _ in range(20):
            cost.observe(32, CONTEXT, ROWS, 0.04)
    assert 0.93 * 4.0 < relative(bound, 32, CONTEXT, ROWS) <= relative(mean, 32, CONTEXT, ROWS)


@pytest.mark.parametrize("rows", [2, 8])
def test_costs_of_more_rows_are_the_mean(rows: int) -> None:
    cost, mean = StepCost(), StepCost(policy=MEAN)
    for each in (cost, mean):
        for width, ratio in zip(WIDTHS, CURVES["steep"], strict=True):
            each.observe(width * rows, CONTEXT, rows, 0.01 * ratio)
    assert cost.table(64, CONTEXT, rows) == mean.table(64, CONTEXT, rows)
