"""A model's twin with one kernel in place of several: which modules are replaced, and that it computes the same."""

import types
from types import SimpleNamespace

import pytest
import torch
from families import BY_NAME
from tiny import tiny_model, words
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama import modeling_llama
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from lade.static.condensed import condensed

REPLACED = {  # per family: which modules are replaced, by what their names contain
    "llama": {"RMSNorm", "Attention", "MLP"},
    "qwen3": {"RMSNorm", "Attention", "MLP"},
    "mixtral": {"RMSNorm", "Attention"},
    "gemma3": {"Attention"},  # norms with weights around zero, gates of another function
    "phi3": {"RMSNorm"},  # a part of each head is rotated
    "gpt2": set(),
}
HALVES = modeling_llama.rotate_half


def replaced(model, twin):
    pairs = zip(model.modules(), twin.modules(), strict=True)
    return [type(own) for own, other in pairs if type(own) is not type(other)]


@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize("name", REPLACED)
@torch.no_grad()
def test_the_twin_computes_the_same(name):
    model = tiny_model(BY_NAME[name], "sdpa", torch.bfloat16)
    twin, ids = condensed(model), words(9)["input_ids"]
    names = " ".join(kind.__name__ for kind in replaced(model, twin))
    assert {kind for kind in ("RMSNorm", "Attention", "MLP") if kind in names} == REPLACED[name]
    assert (twin is model) == (not REPLACED[name])
    torch.testing.assert_close(twin(ids).logits, model(ids).logits, rtol=2**-6, atol=2**-8)


def llama():
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=64, **sizes)).eval()


def test_the_model_is_not_changed():
    model = llama()
    before = [(module, type(module), dict(module.__dict__)) for module in model.modules()]
    twin = condensed(model)
    assert replaced(model, twin)
    assert [(module, type(module), module.__dict__) for module in model.modules()] == before
    assert all(one is other for one, other in zip(model.parameters(), twin.parameters(), strict=True))
    assert twin.model.layers[0].mlp.gate_proj is model.model.layers[0].mlp.gate_proj


def test_other_types_are_computed_by_transformers_operations():
    model, ids = llama().double(), torch.arange(9)[None]
    with torch.no_grad():
        assert torch.equal(condensed(model)(ids).logits, model(ids).logits)


def test_what_was_patched_stays():
    model = llama()
    norm, mlp, layer = model.model.norm, model.model.layers[0].mlp, model.model.layers[1]
    norm.forward = types.MethodType(lambda self, states: states, norm)
    mlp.act_fn = torch.nn.GELU()
    calls = []
    layer.mlp.register_forward_hook(lambda module, args, output: calls.append(module))
    twin = condensed(model)
    assert twin.model.norm is norm
    assert twin.model.layers[0].mlp is mlp
    twin(torch.arange(3)[None])
    assert len(calls) == 1


def test_rotations_of_neighbours_stay(monkeypatch):
    model = llama()
    attention = type(model.model.layers[0].self_attn)

    def interleaved(x):
        return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)

    assert attention in replaced(model, condensed(model))
    monkeypatch.setattr(modeling_llama, "rotate_half", interleaved)
    monkeypatch.setattr(
        "lade.static.condensed.llama", SimpleNamespace(**vars(modeling_llama) | {"rotate_half": HALVES})
    )
    assert attention not in replaced(model, condensed(model))


def test_a_norm_of_another_code_stays():
    class Around(LlamaRMSNorm):
        def forward(self, hidden_states):
            return 1 + super().forward(hidden_states)

    model = llama()
    model.model.norm = Around(32)
    assert condensed(model).model.norm is model.model.norm
