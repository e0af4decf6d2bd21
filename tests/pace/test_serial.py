"""The prior of a CPU without fast products: every token costs about as much as the first."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from families import BY_NAME
from inblocks import own_blocks
from tiny import tiny_model
from transformers import LlamaForCausalLM

from lade.pace import costfile
from lade.pace.cost import COST, StepCost
from lade.pace.prior import PRIOR, SERIAL
from lade.pace.roofline import prior_for
from lade.weights.packing import pack_weights

# Of a step over one of a token, in bfloat16 on an AMD EPYC with AVX2.
MEASURED = {
    "135M": {2: 1.46, 4: 2.23, 8: 4.58, 16: 8.03, 32: 15.35},
    "8M": {2: 1.17, 4: 1.64, 8: 2.39, 16: 4.57, 32: 7.96},
}


def halved() -> LlamaForCausalLM:
    return copy.deepcopy(tiny_model(BY_NAME["llama"], "sdpa")).to(torch.bfloat16)


def started() -> StepCost:
    return StepCost(policy=replace(COST, kalman=replace(COST.kalman, prior=SERIAL)))


@pytest.mark.usefixtures("slow_products")
def test_the_dtype_and_the_machine_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    assert prior_for(tiny_model(BY_NAME["llama"], "sdpa")) is PRIOR
    assert prior_for(halved()) is SERIAL
    monkeypatch.setattr("lade.facts.products.told", lambda dtype: True)
    assert prior_for(halved()) is PRIOR


@pytest.mark.usefixtures("slow_products")
def test_quantised_weights_have_other_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lade.pace.roofline.is_quantised", lambda model: True)
    assert prior_for(halved()) is PRIOR


@pytest.mark.usefixtures("slow_products")
def test_weights_in_blocks_have_other_products() -> None:
    model = halved()
    with own_blocks():
        assert pack_weights(model, short=True)
    assert prior_for(model) is PRIOR


@pytest.mark.usefixtures("slow_products")
def test_costs_start_from_it() -> None:
    assert costfile.load(halved()).table(16, 100, 1) == started().table(16, 100, 1)


def test_it_is_near_what_was_measured() -> None:
    for width, cost in MEASURED["135M"].items():
        assert math.exp(SERIAL.log_cost(width)) == pytest.approx(cost, rel=0.1)


@pytest.mark.parametrize("name", MEASURED)
def test_at_the_start_wide_trees_are_dear(name: str) -> None:
    """A tree of 16 nodes that brings 4 tokens is not sent; one that pays is tried."""
    table = started().table(16, 100, 1)
    assert table[16] > 4
    assert table[16] < MEASURED[name][16] * 1.4


@pytest.mark.parametrize("name", MEASURED)
def test_narrow_steps_tell_what_wide_ones_cost(name: str) -> None:
    cost = started()
    for _ in range(4):
        for width in (1, 2, 1, 4):
            cost.observe(width, 100, 1, 0.01 * {1: 1.0, **MEASURED[name]}[width])
    table = cost.table(16, 100, 1)
    assert table[2] == pytest.approx(MEASURED[name][2], rel=0.1)
    assert table[16] == pytest.approx(MEASURED[name][16], rel=0.4)


def test_a_machine_where_tokens_are_cheap_after_all_is_learned() -> None:
    cost = started()
    for _ in range(8):
        for width, seconds in ((1, 0.010), (2, 0.011), (4, 0.012)):
            cost.observe(width, 100, 1, seconds)
    table = cost.table(16, 100, 1)
    assert table[4] < 1.25
    assert table[16] < 3
