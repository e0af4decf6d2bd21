"""Weights of a stick-breaking mixture, against Bayes' rule written out and against data drawn from a known mixture."""

import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rowarrays import memory_of, place, row_of, scratch

from lade.memory import mixture
from lade.memory.calibration import Calibration
from lade.memory.mixture import CALIBRATION, weigh
from lade.memory.pools import Pool, fresh_pool
from lade.memory.stages import DEPTHS, STAGES

pytestmark = pytest.mark.usefixtures("as_python")

ESCAPE, STRENGTH = CALIBRATION.escape, STAGES[0].strength  # that of all stages that come first
CHOICE = 1

SHARES = st.floats(0, 1)
MIXTURES = st.lists(st.tuples(SHARES, SHARES), min_size=1, max_size=6)  # per stage: weight, probability of the choice
MEMORY = memory_of([0])
ROOT = place(MEMORY)
TABLE = fresh_pool().table

_said: dict[int, tuple[int, float]] = {}  # what stages predict: their bucket, the probability of the choice


@pytest.fixture(scope="module", autouse=True)
def _stages_that_say_so() -> Iterator[None]:
    def predicted(row: Any, node: int, stage: int, tokens: list[int], masses: list[float]) -> tuple[int, int]:
        if stage not in _said:
            return 0, 0
        bucket, masses[0] = _said[stage]
        tokens[0] = CHOICE
        return 1, bucket

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mixture, "predicted", predicted)
        yield


def of_weights(*weights: float) -> Calibration:
    """These in the first buckets of the first stages."""
    calibration = Calibration()
    for stage, weight in enumerate(weights):
        calibration.weights[stage][0] = weight
    return calibration


def weights_of(calibration: Calibration, number: int) -> list[float]:
    return [float(stage[0]) for stage in calibration.weights[:number]]


def learn(calibration: Calibration, stages: Sequence[tuple[int, int, float]]) -> None:
    """One verified node: (stage, bucket, probability that it gave to the model's choice) of those that predicted."""
    _said.clear()
    _said.update({stage: (bucket, probability) for stage, bucket, probability in stages})
    MEMORY.pool = Pool(TABLE, calibration)
    weigh(row_of(MEMORY), ROOT, CHOICE, *scratch())


def posterior(weights: Sequence[float], probabilities: Sequence[float]) -> list[float]:
    """How likely each stage is the one that the choice came from; all 0 where none can be."""
    left, joint = 1.0, []
    for weight, probability in zip(weights, probabilities, strict=True):
        joint.append(left * weight * probability)
        left *= 1 - weight
    joint.append(left * ESCAPE)
    total = sum(joint)
    return [part / total for part in joint] if total else [0.0] * len(joint)


@given(MIXTURES)
def test_one_choice_moves_the_weights_as_bayes_rule_says(shares: list[tuple[float, float]]) -> None:
    weights, probabilities = zip(*shares, strict=True)
    calibration = of_weights(*weights)
    learn(calibration, [(stage, 0, probability) for stage, probability in enumerate(probabilities)])
    expected = posterior(weights, probabilities)
    if not any(expected) or min(part for part in expected if part) < 1e-200:
        return  # nothing can have made the choice, or no float tells how likely it was
    for stage, (weight, found) in enumerate(zip(weights, weights_of(calibration, len(shares)), strict=True)):
        reached = sum(expected[stage:])
        moved = weight + (expected[stage] - weight * reached) / (STAGES[stage].strength + reached)
        assert found == pytest.approx(moved, abs=1e-9)


@given(
    st.lists(SHARES, min_size=6, max_size=6),
    st.lists(st.dictionaries(st.integers(0, 2), st.tuples(st.integers(0, 1), SHARES)), max_size=30),
)
def test_weights_stay_shares(priors: list[float], steps: list[dict[int, tuple[int, float]]]) -> None:
    calibration = Calibration()
    for number, prior in enumerate(priors):
        calibration.weights[number % 3][number // 3] = prior
    for step in steps:
        learn(calibration, [(stage, *step[stage]) for stage in step])
    assert all(0 <= weight <= 1 for stage in calibration.weights for weight in stage)


def test_calibrations_begin_with_the_priors_and_share_nothing() -> None:
    one, other, priors = Calibration(), Calibration(), [[*stage.priors * DEPTHS] for stage in STAGES]
    learn(one, [(0, 1, 1.0)])
    assert [stage.tolist() for stage in other.weights] == priors
    assert [seen.tolist() for seen in other.seen] == [[stage.strength] * stage.buckets for stage in STAGES]
    assert one.weights[0][1] > priors[0][1]
    assert one.seen[0][1] > STRENGTH


def test_only_stages_that_predicted_learn() -> None:
    calibration = Calibration()
    learn(calibration, [])
    assert (calibration.numbers == Calibration().numbers).all()
    calibration.numbers[: len(calibration.numbers) // 2] = 0.5
    learn(calibration, [(0, 1, 0.0), (2, 0, 0.9)])
    changed = [
        (number, bucket) for number, stage in enumerate(calibration.weights) for bucket in (stage != 0.5).nonzero()[0]
    ]
    assert changed == [(0, 1), (2, 0)]
    assert calibration.weights[0][1] < 0.5 < calibration.weights[2][0]


@pytest.mark.parametrize("truth", [(0.7, 0.4, 0.8), (0.3, 0.6, 0.5), (0.0, 0.3, 0.95)])
def test_weights_converge_to_the_mixture_that_the_choices_come_from(truth: tuple[float, ...]) -> None:
    """Stages that are sure of different tokens; 0.055 is the furthest that any of the seeds 0 to 7 is off."""
    noise, calibration = random.Random(0), of_weights(0.5, 0.5, 0.5)
    distributions = [[0.9, 0.05, 0.05, 0.0], [0.05, 0.8, 0.1, 0.05], [0.1, 0.1, 0.7, 0.1]]
    for _ in range(4_000):
        stage = next((stage for stage, weight in enumerate(truth) if noise.random() < weight), None)
        known = stage is not None
        choice = noise.choices(range(4), distributions[stage])[0] if known else 4  # a token that nobody knows
        learn(calibration, [(index, 0, row[choice] if known else 0.0) for index, row in enumerate(distributions)])
    assert weights_of(calibration, 3) == pytest.approx(truth, abs=0.06)


def test_buckets_converge_on_their_own() -> None:
    noise, calibration = random.Random(1), of_weights(0.5, 0.5)
    for _ in range(5_000):
        bucket = noise.randrange(2)
        right = noise.random() < (0.2, 0.9)[bucket]
        learn(calibration, [(0, bucket, float(right)), (1, 0, 0.0 if right else 1.0)])
    assert calibration.weights[0][:2].tolist() == pytest.approx([0.2, 0.9], abs=0.05)
    assert calibration.weights[1][0] > 0.95


def test_a_stage_that_is_always_wrong_loses_its_weight() -> None:
    calibration = of_weights(0.99, 0.5)
    for _ in range(2_000):
        learn(calibration, [(0, 0, 0.0), (1, 0, 0.5)])
    assert weights_of(calibration, 2)[0] == pytest.approx(0.99 * STRENGTH / (STRENGTH + 2_000))
    assert weights_of(calibration, 2)[1] > 0.99


def test_a_stage_behind_one_that_explains_everything_learns_nothing() -> None:
    calibration = of_weights(1.0, 0.3)
    for _ in range(100):
        learn(calibration, [(0, 0, 1.0), (1, 0, 0.0)])
    assert weights_of(calibration, 2) == [1.0, 0.3]


def test_a_choice_that_no_stage_knows_costs_all_of_them_the_same_share() -> None:
    calibration = of_weights(0.8, 0.4)
    learn(calibration, [(0, 0, 0.0), (1, 0, 0.0)])
    left = STRENGTH / (STRENGTH + 1)
    assert weights_of(calibration, 2) == pytest.approx([0.8 * left, 0.4 * left])


def test_the_last_stage_competes_with_the_unknown_token() -> None:
    """Right where the unknown token is likelier still, it gains nothing like a full share."""
    sure, unsure = of_weights(0.5), of_weights(0.5)
    learn(sure, [(0, 0, 0.9)])
    learn(unsure, [(0, 0, ESCAPE)])
    assert weights_of(unsure, 1) == pytest.approx([0.5])
    assert weights_of(sure, 1)[0] == pytest.approx(0.5 + (0.9 / (0.9 + ESCAPE) - 0.5) / (STRENGTH + 1))


def test_weights_of_one_and_zero_do_not_divide_by_zero() -> None:
    calibration = of_weights(1.0, 0.0, 1.0)
    for probability in (0.0, 1.0, 0.0):
        learn(calibration, [(stage, 0, probability) for stage in range(3)])
    assert all(math.isfinite(weight) and 0 <= weight <= 1 for weight in weights_of(calibration, 3))
