"""The roofline prior: flat while the weights take longer to read than the tokens to compute."""

import math

import pytest
import torch
from families import BY_NAME
from tiny import tiny_model

from lade.pace import costfile, roofline
from lade.pace.prior import PRIOR
from lade.pace.roofline import Device, RooflinePrior, measured, prior_for, roofline_of

H100 = Device(bandwidth=3.0e12, operations=650e12)
BIG = RooflinePrior(weight_bytes=14 * 10**9, weights=7 * 10**9, kv_bytes=2 * 32 * 32 * 128 * 2, device=H100)


def test_a_7b_model() -> None:
    assert 5.3e-3 > BIG.seconds(1, context=512) > 14e9 / 3e12
    assert 1.0 < math.exp(BIG.log_cost(64, context=512)) < 1.12
    assert math.exp(BIG.log_cost(64, context=8192)) < math.exp(BIG.log_cost(64, context=512))
    assert math.exp(BIG.log_cost(2048)) > 5  # beyond the ridge it computes
    assert BIG.log_cost(8, rows=8) == 0
    assert BIG.covariance().shape == PRIOR.covariance().shape


def test_what_a_model_reads() -> None:
    """Of an embedding that is not the output too, a step reads rows only."""
    model = tiny_model(BY_NAME["llama"], "sdpa")
    found = roofline_of(model, H100)
    rows = model.get_input_embeddings().weight.numel()
    assert found.weights == sum(parameter.numel() for parameter in model.parameters()) - rows
    assert found.weight_bytes == 4 * found.weights
    assert found.kv_bytes == 2 * 2 * 2 * 8 * 4


def test_costs_start_from_the_prior_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(BY_NAME["llama"], "sdpa")
    assert prior_for(model) is PRIOR
    monkeypatch.setattr(roofline, "MEASURED", "cpu")
    monkeypatch.setattr(roofline, "measured", lambda device, dtype: H100)
    before = PRIOR.log_cost(64)
    assert math.log(costfile.load(model).table(64, 100, 1)[64]) < before / 2


def test_speeds_are_measured() -> None:
    found = measured(torch.device("cpu"), torch.float32, copied=1 << 16, side=32)
    assert found.bandwidth > 0
    assert found.operations > 0
