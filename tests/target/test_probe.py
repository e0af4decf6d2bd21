"""The self-probe's verdicts: given once, forgotten with the model. What it finds is in `test_broken_models`."""

import copy
import threading
from typing import Any

import pytest
import torch
from families import BRANCHABLE
from probes import assert_goes_with_its_verdict, counted_probes
from tiny import tiny_model, words
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

import lade
from lade.target import probe
from lade.target.layers import SLACK
from lade.target.masks import layer_kinds
from lade.target.probe import distance, probed_reason
from lade.target.store import SPARE, LayerGroup

LLAMA = next(family for family in BRANCHABLE if family.name == "llama")
GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 3}


def fresh(attention: str = "sdpa") -> PreTrainedModel:
    """A model that nobody has probed."""
    model = LlamaForCausalLM(copy.deepcopy(tiny_model(LLAMA, attention).config)).eval()
    model.generation_config = copy.deepcopy(tiny_model(LLAMA, attention).generation_config)
    return model


def generate(model: PreTrainedModel) -> None:
    lade.generate(model, **words(5), **GREEDY)
    assert lade.last_stats().fallback is None


@pytest.mark.compat
def test_a_model_is_probed_once() -> None:
    model, other = fresh(), fresh()
    with counted_probes() as probed:
        for each in (model, model, other, model):
            generate(each)
    assert [id(each) for each in probed] == [id(model), id(other)]


def test_what_changes_the_forward_is_probed_again() -> None:
    model = fresh()
    with counted_probes() as probed:
        generate(model)
        model.set_attn_implementation("eager")
        generate(model)
        generate(model.to(torch.bfloat16))
        model.set_attn_implementation("sdpa")
        generate(model.to(torch.float32))
    assert len(probed) == 3


def test_a_bad_verdict_is_remembered_too() -> None:
    model = fresh()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probe, "_measure", lambda *args: (1.0, 0.5))
        reasons = [probed_reason(model, layer_kinds(model.config), None)]
    with counted_probes() as probed:
        reasons.append(probed_reason(model, layer_kinds(model.config), None))
    assert probed == []
    assert reasons[0] == reasons[1]
    assert "off by 1" in (reasons[0] or "")
    assert "0.5" in (reasons[0] or "")


def test_a_verdict_goes_with_its_model() -> None:
    def probed() -> PreTrainedModel:
        model = fresh()
        generate(model)
        return model

    assert_goes_with_its_verdict(probed)


def test_threads_probe_once() -> None:
    model, start = fresh(), threading.Barrier(4)
    found: list[str | None] = []

    def work() -> None:
        start.wait()
        found.append(probed_reason(model, layer_kinds(model.config), None))

    with counted_probes() as probed:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [None] * 4
    assert len(probed) == 1


def test_the_probe_leaves_no_trace() -> None:
    """Neither in the generator, nor in the statistics, nor in the model."""
    model = fresh()
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    settings, state = model.config.to_dict(), torch.get_rng_state()
    calls, last = len(lade.log_history()), lade.last_stats()
    assert probed_reason(model, layer_kinds(model.config), None) is None
    assert torch.equal(torch.get_rng_state(), state)
    assert (len(lade.log_history()), lade.last_stats()) == (calls, last)
    assert model.config.to_dict() == settings
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_the_probe_holds_no_memory_for_a_long_answer(implementation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its slots have room for its few tokens, and none to spare for an answer's."""
    stored: list[int] = []
    provide = LayerGroup._provide

    def noted(group: LayerGroup, wanted: dict[int, int]) -> None:
        provide(group, wanted)
        stored.extend(group.slabs.capacities.values())

    monkeypatch.setattr(LayerGroup, "_provide", noted)
    model = fresh()
    model.set_attn_implementation(implementation)
    assert probed_reason(model, layer_kinds(model.config), None) is None
    assert max(stored) <= probe.LONGEST + SLACK < SPARE


def small_llama(**settings: Any) -> LlamaForCausalLM:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(**({"vocab_size": 50} | sizes | settings))).eval()


@pytest.mark.parametrize("vocabulary", [1, 2, 15])
def test_small_vocabularies(vocabulary: int) -> None:
    model = small_llama(vocab_size=vocabulary, bos_token_id=0, eos_token_id=0)
    assert probed_reason(model, layer_kinds(model.config), None) is None


@pytest.mark.parametrize("positions", [16, 12])
def test_few_learned_positions(positions: int) -> None:
    """The probe fits into a short table."""
    sizes = {"vocab_size": 50, "n_embd": 16, "n_layer": 1, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0}
    model = GPT2LMHeadModel(GPT2Config(**sizes, n_positions=positions)).eval()
    assert probed_reason(model, layer_kinds(model.config), positions) is None


@pytest.mark.parametrize("seed", range(4))
def test_rounding_of_many_layers_is_no_difference(seed: int) -> None:
    """A bound of four units in the last place fails, on CPUs that round alike for any width."""
    torch.manual_seed(seed)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 24, "num_attention_heads": 4}
    model = small_llama(**sizes, num_key_value_heads=2, initializer_range=0.15, vocab_size=999)
    assert probed_reason(model.to(torch.bfloat16), layer_kinds(model.config), None) is None


class Forbidding(LlamaForCausalLM):
    """Its head says of some tokens that they never come."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = super().forward(*args, **kwargs)
        output.logits[..., 3::7] = -torch.inf
        return output


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("config", [lade.LookaheadConfig(mode="lookahead"), lade.LookaheadConfig(mode="auto")])
def test_infinite_logits_are_no_difference(config: lade.LookaheadConfig, dtype: torch.dtype) -> None:
    sound = tiny_model(LLAMA, "sdpa")
    model = Forbidding(copy.deepcopy(sound.config)).eval()
    model.load_state_dict(sound.state_dict())
    model.generation_config = copy.deepcopy(sound.generation_config)
    model.to(dtype)
    assert probed_reason(model, layer_kinds(model.config), None) is None
    if dtype == torch.float32:
        for asked in ({"do_sample": False}, {"do_sample": True}):
            torch.manual_seed(0)
            expected = model.generate(**words(9), **asked, max_new_tokens=32)
            torch.manual_seed(0)
            assert lade.generate(model, **words(9), **asked, max_new_tokens=32, config=config).tolist() == (
                expected.tolist()
            )
            assert lade.last_stats().fallback is None


INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("found", "reference", "far"),
    [
        ([1.0, -INF], [1.5, -INF], 0.5),
        ([INF, -INF], [INF, -INF], 0.0),
        ([1.0, 2.0], [1.0, -INF], INF),
        ([1.0, INF], [1.0, -INF], INF),
        ([1.0, NAN], [1.0, 2.0], INF),
        ([1.0, 2.0], [NAN, 2.0], INF),
    ],
)
def test_distances(found: list[float], reference: list[float], far: float) -> None:
    assert distance(torch.tensor(found), torch.tensor(reference)) == far
