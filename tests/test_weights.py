"""Priors from observations: those that data was drawn from are found again, and the loss falls."""

import math
import random

import pytest
import weights

from lade.memory.stages import STAGES

TRUTH = [[0.2, 0.6], [0.5, 0.5]]
ROWS = [[0.9, 0.05, 0.05], [0.05, 0.9, 0.05]]  # what each of two stages predicts


def drawn(texts: int, nodes: int) -> list[list[weights.Shares]]:
    noise = random.Random(0)

    def node() -> weights.Shares:
        bucket = noise.randrange(2)
        stage = next((stage for stage in (0, 1) if noise.random() < TRUTH[stage][bucket]), None)
        choice = 3 if stage is None else noise.choices(range(3), ROWS[stage])[0]
        return [(each, bucket, 0.0 if choice == 3 else ROWS[each][choice]) for each in (0, 1)]

    return [[node() for _ in range(nodes)] for _ in range(texts)]


def test_the_weights_that_data_is_drawn_from_are_likeliest() -> None:
    found = weights.likeliest(drawn(40, 100), [[0.5, 0.5], [0.5, 0.5]], 1e-3, pooled=1e-6)
    assert [*found[0], *found[1]] == pytest.approx([0.2, 0.6, 0.5, 0.5], abs=0.05)


def test_likeliest_weights_are_better_priors() -> None:
    texts, flat = drawn(20, 50), [[0.5, 0.5], [0.5, 0.5]]
    assert weights.log_loss(texts, TRUTH, 1e-3) < weights.log_loss(texts, flat, 1e-3) - 0.01


def test_few_observations_are_drawn_towards_the_stage() -> None:
    texts = [[[(0, 0, 1.0)]] * 99 + [[(0, 1, 0.0)]]]
    found = weights.likeliest(texts, [[0.5, 0.5], [0.3]], 1e-3, pooled=10)
    assert found[0][1] > 0.8
    assert found[1] == [0.3]  # nothing was seen


def test_the_loss_is_that_of_a_choice_before_it_is_learned() -> None:
    assert weights.log_loss([[[(0, 0, 1.0)]]], [[0.25]], 0.0) == pytest.approx(-math.log(0.25))
    both = weights.log_loss([[[(0, 0, 1.0)], [(0, 0, 1.0)]]], [[0.25]], 0.0)
    second = 0.25 + 0.75 / (STAGES[0].strength + 1)
    assert both == pytest.approx(-(math.log(0.25) + math.log(second)) / 2, rel=1e-2)


def test_the_probability_is_that_of_the_mixture() -> None:
    assert weights.probability([[0.5], [0.25]], [(0, 0, 0.2), (1, 0, 0.4)], 0.1) == pytest.approx(
        0.5 * 0.2 + 0.5 * 0.25 * 0.4 + 0.5 * 0.75 * 0.1
    )
