"""Which models have fused layers, and what ends them: transformers' own code, unpatched, and nothing else."""

import contextlib
import copy
import functools
import gc
import weakref
from collections.abc import Callable, Iterator
from types import FunctionType, MethodType
from typing import Any

import pytest
import torch
from families import BRANCHABLE, Family
from tiny import own_llama, tiny_model
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from transformers import LlamaForCausalLM
from transformers.models.llama import modeling_llama
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaModel, LlamaRMSNorm

from lade.target.fused.plan import Plan, plan_of
from lade.target.fused.watch import SHARES, part_of

FUSED = {"llama", "mistral", "mistral-sliding", "qwen2", "qwen2-sliding", "qwen3"}


@pytest.mark.compat
@pytest.mark.parametrize("family", BRANCHABLE, ids=lambda family: family.name)
@torch.no_grad()
def test_families(family: Family) -> None:
    assert (plan_of(tiny_model(family, family.attention[-1])) is not None) == (family.name in FUSED)


@torch.no_grad()
def test_other_numbers() -> None:
    model = own_llama()
    assert plan_of(model) is not None
    assert plan_of(model.double()) is None
    assert plan_of(model.bfloat16()) is not None
    model.model.norm.float()
    assert plan_of(model) is None


Change = Callable[[Any], contextlib.AbstractContextManager[None]]


@contextlib.contextmanager
def hook(model: Any) -> Iterator[None]:
    handle = model.model.layers[0].self_attn.k_proj.register_forward_pre_hook(lambda *given: None)
    yield
    handle.remove()


@contextlib.contextmanager
def hook_of_the_embedding(model: Any) -> Iterator[None]:
    handle = model.model.embed_tokens.register_forward_hook(lambda *given: None)
    yield
    handle.remove()


@contextlib.contextmanager
def hook_of_all_modules(model: Any) -> Iterator[None]:
    handle = register_module_forward_hook(lambda *given: None)
    yield
    handle.remove()


@contextlib.contextmanager
def method_of_an_instance(model: Any) -> Iterator[None]:
    norm = model.model.layers[1].post_attention_layernorm
    norm.forward = MethodType(lambda self, states: states, norm)
    yield
    del norm.forward


@contextlib.contextmanager
def method_of_the_model(model: Any) -> Iterator[None]:
    model.forward = functools.partial(LlamaForCausalLM.forward, model)
    yield
    del model.forward


@contextlib.contextmanager
def method_of_a_class(model: Any) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LlamaMLP, "forward", lambda self, states: states)
        yield


@contextlib.contextmanager
def decorated_class(model: Any) -> Iterator[None]:
    own = LlamaModel.forward

    @functools.wraps(own)
    def forward(*args: Any, **kwargs: Any) -> Any:
        return own(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LlamaModel, "forward", forward)
        yield


@contextlib.contextmanager
def another_class(model: Any) -> Iterator[None]:
    mlp = model.model.layers[0].mlp
    mlp.__class__ = type("Own", (LlamaMLP,), {"forward": lambda self, states: states})
    yield
    mlp.__class__ = LlamaMLP


@contextlib.contextmanager
def another_layer(model: Any) -> Iterator[None]:
    own = model.model.layers[0].mlp.up_proj
    model.model.layers[0].mlp.up_proj = torch.nn.Identity()
    yield
    model.model.layers[0].mlp.up_proj = own


@contextlib.contextmanager
def a_layer_more(model: Any) -> Iterator[None]:
    model.model.layers[0].mlp.added = torch.nn.Identity()
    yield
    del model.model.layers[0].mlp.added


@contextlib.contextmanager
def training(model: Any) -> Iterator[None]:
    model.model.layers[1].self_attn.train()
    yield
    model.eval()


@contextlib.contextmanager
def another_activation(model: Any) -> Iterator[None]:
    own = model.model.layers[0].mlp.act_fn
    model.model.layers[0].mlp.act_fn = torch.nn.GELU()
    yield
    model.model.layers[0].mlp.act_fn = own


CHANGES = (
    *(hook, hook_of_the_embedding, hook_of_all_modules, method_of_an_instance, method_of_the_model),
    *(method_of_a_class, decorated_class, another_class, another_layer, another_activation, training),
)


@pytest.mark.parametrize("change", CHANGES)
@torch.no_grad()
def test_what_a_change_ends(change: Change) -> None:
    """A plan does not hold, and there is no other one, until the change is undone."""
    model = own_llama()
    plan = plan_of(model)
    assert plan is not None
    with change(model):
        assert not plan.holds(model)
        assert plan_of(model) is None
    assert plan_of(model) is not None


@pytest.mark.parametrize("name", ["model.norm.weight", "model.embed_tokens.weight"])
@torch.no_grad()
def test_what_lies_elsewhere_is_a_change_that_the_next_plan_knows(name: str) -> None:
    model = own_llama()
    plan, parameter = plan_of(model), model.get_parameter(name)
    parameter.mul_(2)
    assert plan is not None
    assert plan.holds(model)
    parameter.data = parameter.data.clone()
    assert not plan.holds(model)
    assert plan_of(model) is not None


def test_an_embedding_that_changes_its_weight_is_another_kind() -> None:
    model = own_llama()
    model.model.embed_tokens.max_norm = 1.0
    assert plan_of(model) is None


@contextlib.contextmanager
def moved_norm(model: Any) -> Iterator[None]:
    weight = model.model.norm.weight
    own, weight.data = weight.data, weight.data.clone()
    yield
    weight.data = own


def plan_for(model: Any) -> Plan:
    plan = plan_of(model)
    assert plan is not None
    return plan


@pytest.mark.parametrize("change", [*CHANGES, moved_norm])
@torch.no_grad()
def test_each_change_is_in_a_share(change: Change) -> None:
    model = own_llama()
    plan = plan_for(model)
    assert all(plan.holds(model, share) for share in range(SHARES))
    with change(model):
        assert not all(plan.holds(model, share) for share in range(SHARES))
    assert all(plan.holds(model, share) for share in range(SHARES))


@torch.no_grad()
def test_a_hook_is_seen_whichever_share_is_looked_at() -> None:
    model = own_llama()
    plan = plan_for(model)
    with hook(model):
        assert not any(plan.holds(model, share) for share in range(SHARES))
    assert all(plan.holds(model, share) for share in range(SHARES))


@torch.no_grad()
def test_a_hook_elsewhere_costs_one_look_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    model, looked = own_llama(), list[Any]()
    plan = plan_for(model)
    kind = type(plan.watch._shares[0])
    holds = kind.holds
    monkeypatch.setattr(kind, "holds", lambda share: looked.append(share) or holds(share))
    nn.Linear(1, 1).register_forward_hook(lambda *given: None)
    assert plan.holds(model, 1)
    assert plan.holds(model, 1)
    assert looked == [*plan.watch._shares, plan.watch._shares[1]]


def test_shares_are_all() -> None:
    things = range(3 * SHARES + 1)
    assert sorted(thing for share in range(SHARES) for thing in things[part_of(share)]) == [*things]
    assert things[part_of(None)] == things


@torch.no_grad()
def test_a_module_more_is_a_change_that_the_next_plan_knows() -> None:
    model = own_llama()
    plan = plan_of(model)
    with a_layer_more(model):
        assert plan is not None
        assert not plan.holds(model)
        assert plan_of(model) is not None


def test_a_plan_is_made_once() -> None:
    """Whether gradients are wanted, as where an engine takes a request, or not."""
    model = own_llama()
    with torch.no_grad():
        plan = plan_of(model)
    assert plan is not None
    assert plan_of(model) is plan


def turned(query: Any, key: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
    return key, query


def halves(x: Any) -> Any:
    return x


@pytest.mark.parametrize(("name", "other"), [("apply_rotary_pos_emb", turned), ("rotate_half", halves)])
@torch.no_grad()
def test_other_rotations(name: str, other: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even in transformers' file."""
    code = other.__code__.replace(co_filename=modeling_llama.__file__)
    monkeypatch.setattr(modeling_llama, name, FunctionType(code, vars(modeling_llama), name))
    assert plan_of(own_llama()) is None


@torch.no_grad()
def test_copies_of_code_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same instructions may call other functions there."""
    own = LlamaRMSNorm.forward
    code = own.__code__.replace(co_filename="elsewhere.py")
    monkeypatch.setattr(LlamaRMSNorm, "forward", FunctionType(code, own.__globals__, own.__name__, own.__defaults__))
    assert plan_of(own_llama()) is None


@torch.no_grad()
def test_layers_of_unlike_heads() -> None:
    model = own_llama()
    attention = model.model.layers[1].self_attn
    attention.k_proj, attention.v_proj = (torch.nn.Linear(32, 8, bias=False) for _ in range(2))
    attention.num_key_value_groups = 4
    assert plan_of(model) is None


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
@torch.no_grad()
def test_rotations_that_change_with_the_text(kind: str) -> None:
    config = copy.deepcopy(own_llama().config)
    config.rope_parameters = {"rope_type": kind, "rope_theta": 1e4, "factor": 2.0}
    if kind == "longrope":
        config.rope_parameters |= {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    assert plan_of(LlamaForCausalLM(config).eval()) is None


def test_a_plan_keeps_no_model() -> None:
    model = own_llama()
    with torch.no_grad():
        assert plan_of(model) is not None
    there = weakref.ref(model)
    del model
    gc.collect()
    assert there() is None
