"""Fingerprints: every bit of every weight counts, where and how the model lies does not."""

import copy
from collections.abc import Callable

import peft
import pytest
import torch
from families import BRANCHABLE
from tiny import tiny_model
from torch.testing._internal.two_tensor import TwoTensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from lade.facts import fingerprint as module
from lade.facts.fingerprint import configuration_key, fingerprint, weights_state

LLAMA = next(family for family in BRANCHABLE if family.name == "llama")


def fresh(dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    return copy.deepcopy(tiny_model(LLAMA, dtype=dtype))


class Weights(torch.nn.Module):
    """A model of nothing but one tensor."""

    def __init__(self, *values: torch.Tensor) -> None:
        super().__init__()
        self.config = tiny_model(LLAMA).config
        for index, value in enumerate(values):
            self.register_buffer(f"weight{index}", value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.bool, torch.float64])
@pytest.mark.parametrize("size", [1, 7, 8, 37])
def test_every_single_element_counts(dtype: torch.dtype, size: int) -> None:
    values = torch.arange(size).to(dtype)
    seen = {fingerprint(Weights(values))}
    for index in range(size):
        other = values.clone()
        other[index] = 1 - other[index].int()
        seen.add(fingerprint(Weights(other)))
    assert len(seen) == size + 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_changes_do_not_cancel_out(dtype: torch.dtype) -> None:
    values = torch.arange(1, 17).to(dtype)
    seen = {fingerprint(Weights(values))}
    for first in range(16):
        for second in range(first + 1, 16):
            other = values.clone()
            other[[first, second]] *= -1  # the highest bit of each
            swapped = values.clone()
            swapped[[first, second]] = values[[second, first]]
            seen |= {fingerprint(Weights(other)), fingerprint(Weights(swapped))}
    assert len(seen) == 1 + 2 * (16 * 15 // 2)


def test_the_borders_of_chunks_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 4)
    values = torch.arange(27.0)  # four chunks, the last one short, and half a word
    moved = torch.cat([values[8:16], values[:8], values[16:]])
    assert len({fingerprint(Weights(each)) for each in (values, moved, values[:26], values[:24])}) == 4


def test_what_lies_elsewhere_or_otherwise_is_the_same() -> None:
    values = torch.arange(36.0)
    places = [
        values,
        torch.cat([torch.zeros(1), values])[1:],  # not at a multiple of eight bytes
        torch.stack([values, values], dim=1)[:, 0],  # not contiguous
    ]
    assert len({fingerprint(Weights(each)) for each in places}) == 1
    assert len({fingerprint(Weights(each)) for each in (values, values[:, None], values.view(6, 6))}) == 3
    assert fingerprint(Weights(values, values + 1)) != fingerprint(Weights(values + 1, values))


@pytest.mark.compat
def test_a_saved_model_keeps_its_fingerprint(tmp_path: object) -> None:
    model = fresh()
    model.save_pretrained(str(tmp_path))
    loaded = AutoModelForCausalLM.from_pretrained(str(tmp_path), attn_implementation="sdpa")
    loaded.config.pad_token_id = 5
    loaded.config.use_cache = False
    assert configuration_key(loaded) == configuration_key(model)
    assert fingerprint(loaded) == fingerprint(model)


def test_precision_and_configuration_count() -> None:
    model, other = fresh(), fresh()
    other.config.rms_norm_eps = 0.5
    assert len({fingerprint(each) for each in (model, other, fresh(torch.bfloat16))}) == 3
    assert len({configuration_key(each) for each in (model, other, fresh(torch.bfloat16))}) == 3


def test_the_weights_are_read_once_per_state(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fresh()
    first = fingerprint(model)
    with monkeypatch.context() as patch:
        patch.setattr(module, "_hash", lambda model: pytest.fail("the weights were read again"))
        assert fingerprint(model) == first
    with torch.no_grad():
        model.lm_head.weight[3, 3] += 1
    assert fingerprint(model) != first
    with torch.no_grad():
        model.lm_head.weight.copy_(fresh().lm_head.weight)
    assert fingerprint(model) == first


def one_write(write: Callable[[torch.Tensor], object]) -> None:
    model = fresh()
    state = weights_state(model)
    assert weights_state(model) == state
    write(model.model.layers[1].self_attn.q_proj.weight)
    assert weights_state(model) != state


@torch.no_grad()
def test_a_write_is_noticed() -> None:
    one_write(lambda weight: weight[1, 1].add_(1))
    one_write(lambda weight: weight.data.mul_(2))
    one_write(lambda weight: setattr(weight, "data", weight.clone()))


def test_not_a_number_is_no_change() -> None:
    model = Weights(torch.full((4,), float("nan")))
    assert weights_state(model) == weights_state(model)


def test_weights_made_in_inference_mode_and_empty_ones_are_taken() -> None:
    with torch.inference_mode():
        values = torch.arange(9.0)
    assert fingerprint(Weights(values)) == fingerprint(Weights(torch.arange(9.0)))
    assert fingerprint(Weights(torch.zeros(0), values)) != fingerprint(Weights(values))


def test_wrapped_tensors_are_looked_into() -> None:
    def wrapped(value: float) -> Weights:
        return Weights(TwoTensor(torch.ones(8), torch.full((8,), value)))

    assert fingerprint(wrapped(1.0)) == fingerprint(wrapped(1.0)) != fingerprint(wrapped(2.0))


@pytest.mark.compat
def test_adapters_count_as_they_are_switched_and_the_wrapper_does_not() -> None:
    settings = peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj"], init_lora_weights=False)
    base = fresh()
    model = peft.get_peft_model(base, settings).eval()
    on = fingerprint(model)
    assert on == fingerprint(base) != fingerprint(fresh())
    with model.disable_adapter():
        assert fingerprint(model) != on
    assert fingerprint(model) == on
    model.merge_adapter()
    assert fingerprint(model) != on


def test_weights_on_other_devices_are_summed_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """64-bit integers need not wrap around there; the fingerprint is the same."""
    model, moved, cpu = fresh(), [], torch.Tensor.cpu
    expected = fingerprint(fresh())
    monkeypatch.setattr(module, "EXACT", ())
    monkeypatch.setattr(torch.Tensor, "cpu", lambda tensor: moved.append(1) or cpu(tensor))
    assert fingerprint(model) == expected
    assert len(moved) >= len(list(model.parameters()))
