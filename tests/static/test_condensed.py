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

from lade.kernels import between, products
from lade.static import multiplied
from lade.static.condensed import condensed

REPLACED = {  # per family: which modules are replaced, by what their names contain
    "llama": {"RMSNorm", "Attention", "MLP", "DecoderLayer", "Part"},
    "qwen2": {"RMSNorm", "Attention", "MLP", "DecoderLayer", "Part"},  # with a bias
    "qwen3": {"RMSNorm", "Attention", "MLP", "DecoderLayer", "Part"},
    "mixtral": {"RMSNorm", "Attention", "Part"},
    "gemma3": {"Attention", "Part"},  # norms with weights around zero, gates of another function
    "phi3": {"RMSNorm"},  # a part of each head is rotated
    "gpt2": set(),
}
KINDS = "RMSNorm", "Attention", "MLP", "DecoderLayer", "Part"
PRODUCTS = {"DecoderLayer", "Part"}  # what is replaced for products alone
HALVES = modeling_llama.rotate_half


@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize("name", REPLACED)
@torch.no_grad()
def test_the_twin_computes_the_same(name):
    model = tiny_model(BY_NAME[name], "sdpa", torch.bfloat16)
    ids, expected = words(9)["input_ids"], model(words(9)["input_ids"]).logits
    for multiplies in (False, True):
        twin, wanted = condensed(model, multiplies), REPLACED[name] - (set() if multiplies else PRODUCTS)
        names = " ".join(type(module).__name__ for module in replaced(model, twin))
        assert {kind for kind in KINDS if kind in names} == wanted
        assert (twin is model) == (not wanted and not multiplies)
        assert multiplies == any(type(module) is multiplied.Linear for module in twin.modules())
        torch.testing.assert_close(twin(ids).logits, expected, rtol=2**-6, atol=2**-8)


@pytest.mark.usefixtures("interpreter")
@torch.no_grad()
def test_launches_of_a_layer(monkeypatch):
    """Four of products, one of them for queries, keys and values; two of norms, one of which adds; and the head's."""
    calls = []
    for room, name in ((products, "linear"), (products, "gated"), (between, "rms_norm"), (between, "added_norm")):
        own = getattr(room, name)
        monkeypatch.setattr(room, name, lambda *args, own=own, name=name: calls.append(name) or own(*args))
    model = llama().bfloat16()
    condensed(model)(torch.arange(9)[None])
    layer = ["rms_norm", "linear", "linear", "added_norm", "gated", "linear"]
    assert calls == [*layer * 2, "rms_norm", "linear"]


@pytest.mark.usefixtures("interpreter")
@torch.no_grad()
def test_layers_that_share_states_are_computed_together_only_with_the_same():
    model, states = llama().bfloat16(), torch.randn(2, 1, 3, 32).bfloat16()
    attention = condensed(model).model.layers[0].self_attn
    for one, other in ((states[0], states[0]), (states[0], states[1]), (states[0].float(), states[0].float())):
        model.to(one.dtype)
        for layer, given in (("q_proj", one), ("k_proj", other), ("v_proj", one)):
            expected = getattr(model.model.layers[0].self_attn, layer)(given)
            torch.testing.assert_close(getattr(attention, layer)(given), expected, rtol=2**-6, atol=2**-8)


@pytest.mark.usefixtures("interpreter")
@torch.no_grad()
def test_residuals_that_do_not_lie_side_by_side_are_added_by_pytorch():
    mlp = llama().bfloat16().model.layers[0].mlp
    twin = condensed(mlp)
    states, residual = torch.randn(1, 3, 32).bfloat16(), torch.randn(1, 32, 3).bfloat16().mT
    torch.testing.assert_close(twin(states, residual), residual + mlp(states), rtol=2**-6, atol=2**-8)


@pytest.mark.usefixtures("interpreter")
@torch.no_grad()
def test_what_hangs_on_a_linear_layer_runs():
    model, calls = llama().bfloat16(), []
    first, second = model.model.layers
    for layer in (first.self_attn.k_proj, first.mlp.up_proj, second.mlp.down_proj, second.post_attention_layernorm):
        layer.register_forward_hook(lambda module, args, output: calls.append(module) or 2 * output)
    ids = torch.arange(9)[None]
    twin = condensed(model)
    torch.testing.assert_close(twin(ids).logits, model(ids).logits, rtol=2**-6, atol=2**-8)
    assert len(calls) == 2 * 4
    del calls[:]
    handle = torch.nn.modules.module.register_module_forward_hook(
        lambda module, args, output: calls.append(type(module).__name__)
    )
    try:
        condensed(model)(ids)
    finally:
        handle.remove()
    assert calls.count("Linear") == 2 * 7 + 1, "a hook of all modules sees each"


def replaced(model, twin):
    """The twin's modules that are of another class."""
    pairs = zip(model.modules(), twin.modules(), strict=True)
    return [other for own, other in pairs if type(own) is not type(other)]


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
    assert twin.model.layers[0].mlp.gate_proj.weight is model.model.layers[0].mlp.gate_proj.weight
    assert condensed(model, False).model.layers[0].mlp.gate_proj is model.model.layers[0].mlp.gate_proj


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
    assert type(twin.model.layers[0].mlp) is type(mlp)
    assert condensed(model, False).model.layers[0].mlp is mlp
    twin(torch.arange(3)[None])
    assert len(calls) == 1


def test_rotations_of_neighbours_stay(monkeypatch):
    model = llama()
    attention = type(model.model.layers[0].self_attn)

    def interleaved(x):
        return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)

    assert attention not in map(type, condensed(model).modules())
    monkeypatch.setattr(modeling_llama, "rotate_half", interleaved)
    monkeypatch.setattr(
        "lade.static.condensed.llama", SimpleNamespace(**vars(modeling_llama) | {"rotate_half": HALVES})
    )
    assert attention in map(type, condensed(model).modules())


def test_a_norm_of_another_code_stays():
    class Around(LlamaRMSNorm):
        def forward(self, hidden_states):
            return 1 + super().forward(hidden_states)

    model = llama()
    model.model.norm = Around(32)
    assert condensed(model).model.norm is model.model.norm
