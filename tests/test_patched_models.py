"""What is put on a model after it was probed, or beside its classes: the text is plain decoding's all the same."""

import functools
import types
from typing import Any

import accelerate
import peft
import pytest
import torch
from probes import assert_goes_with_its_verdict, counted_probes
from sidebyside import assert_falls_back
from tiny import own_llama, words
from torch.nn.modules.module import register_module_forward_hook
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaAttention

import lade
from lade.entry.fallback import FallbackWarning
from lade.measure.forwards import ForwardCounter
from lade.target import probe
from lade.target.patches import patches_of

GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 32}


def probed() -> LlamaForCausalLM:
    model = own_llama()
    lade.generate(model, **words(9), **GREEDY)
    assert lade.last_stats().fallback is None
    return model


def inputs() -> dict[str, Any]:
    return words(9) | GREEDY


def assert_native(model: LlamaForCausalLM) -> None:
    expected = model.generate(**inputs())
    assert lade.generate(model, **inputs()).tolist() == expected.tolist()
    assert lade.last_stats().fallback is None


# Hooks


def steers_last(module: Any, given: Any, output: Any) -> Any:
    output = output[0] if isinstance(output, tuple) else output
    output[:, -1] = output[:, -1].flip(-1)


def looks_on(module: Any, given: Any, *output: Any) -> None:
    pass


class Switched:
    """Steers once it is told to."""

    on = False

    def __call__(self, module: Any, given: Any, output: Any) -> Any:
        return output.flip(-1) if self.on else output


@pytest.mark.parametrize("hook", [steers_last, looks_on, functools.partial(steers_last), lambda *_: None])
def test_a_hook_registered_after_the_probe(hook: Any) -> None:
    model = probed()
    model.model.layers[0].register_forward_hook(hook)
    assert_falls_back(model, inputs, f"a forward hook on model.layers.0, of {__name__}")


def test_a_hook_that_is_switched_on_later() -> None:
    model, hook = own_llama(), Switched()
    model.model.norm.register_forward_hook(hook)
    assert_falls_back(model, inputs, "a forward hook on model.norm")
    hook.on = True
    assert_falls_back(model, inputs, "a forward hook on model.norm")


def test_a_hook_before_the_forward_and_with_keywords() -> None:
    model = probed()
    handle = model.register_forward_pre_hook(lambda module, args, kwargs: None, with_kwargs=True)
    assert_falls_back(model, inputs, "a forward hook on the model")
    handle.remove()
    assert_native(model)


def test_a_hook_on_all_modules() -> None:
    model = probed()
    handle = register_module_forward_hook(looks_on)
    try:
        assert_falls_back(model, inputs, "a forward hook on all modules")
    finally:
        handle.remove()
    assert_native(model)


def test_lades_own_hooks_and_transformers_are_no_reason() -> None:
    model = probed()
    model.generate(**inputs(), output_hidden_states=True, return_dict_in_generate=True)  # may leave hooks behind
    assert_native(model)
    with counted_probes() as found:
        with ForwardCounter(model):
            lade.generate(model, **inputs())
        lade.generate(model, **inputs())
    assert found == []
    assert lade.last_stats().fallback is None


# Methods of an instance


def test_an_attention_replaced_on_the_instance() -> None:
    model = probed()
    attention = model.model.layers[1].self_attn
    own = attention.forward

    def steered(*args: Any, **kwargs: Any) -> Any:
        output, weights = own(*args, **kwargs)
        output[:, -1] *= -1
        return output, weights

    attention.forward = steered
    assert_falls_back(model, inputs, f"a forward of its own on model.layers.1.self_attn, of {__name__}")
    attention.forward = types.MethodType(LlamaAttention.forward, attention)  # the class's own, as accelerate leaves it
    assert_native(model)


def test_another_method_replaced_on_the_instance() -> None:
    class Halves(torch.nn.Linear):
        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            return self.scaled(super().forward(hidden))

        def scaled(self, hidden: torch.Tensor) -> torch.Tensor:
            return hidden / 2

    model = own_llama()
    layer = model.model.layers[0].mlp
    layer.down_proj = Halves(64, 32)
    assert_native(model)
    layer.down_proj.scaled = lambda hidden: hidden * (hidden.shape[1] == 1)
    assert_falls_back(model, inputs, "a scaled of its own on model.layers.0.mlp.down_proj")


def test_accelerates_hooks_are_probed_once() -> None:
    model = probed()
    accelerate.hooks.add_hook_to_module(model.model.layers[0], accelerate.hooks.ModelHook())
    with counted_probes() as found:
        assert_native(model)
        assert_native(model)
    assert len(found) == 1
    accelerate.hooks.remove_hook_from_module(model.model.layers[0])
    model.model.layers[0].forward = lambda *args, **kwargs: LlamaForCausalLM
    accelerate.hooks.add_hook_to_module(model.model.layers[0], accelerate.hooks.ModelHook())
    assert f"of {__name__}" in (patches_of(model).foreign or "")


def test_a_patched_model_is_not_kept_alive() -> None:
    def patched() -> LlamaForCausalLM:
        model = own_llama()
        accelerate.hooks.add_hook_to_module(model, accelerate.hooks.ModelHook())
        assert_native(model)
        return model

    assert_goes_with_its_verdict(patched)


# Classes


def test_a_class_changed_after_the_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    model, own = probed(), LlamaAttention.forward

    def steered(self: Any, *args: Any, **kwargs: Any) -> Any:
        output, weights = own(self, *args, **kwargs)
        output[:, -1] *= -1
        return output, weights

    monkeypatch.setattr(LlamaAttention, "forward", steered)
    assert_falls_back(model, inputs, "self-probe")
    monkeypatch.undo()
    with counted_probes() as found:
        assert_native(model)
    assert found == []


class OneTokenLlama(LlamaForCausalLM):
    """Steers forwards of one token, as a decoding step of plain decoding is."""

    def forward(self, input_ids: Any = None, **kwargs: Any) -> Any:
        output = super().forward(input_ids=input_ids, **kwargs)
        if input_ids.shape[1] == 1:
            output.logits = output.logits.flip(-1)
        return output


def test_what_differs_for_one_token_is_found() -> None:
    assert_falls_back(own_llama(OneTokenLlama), inputs, "self-probe")
    assert_falls_back(own_llama(OneTokenLlama).to(torch.bfloat16), inputs, "self-probe")


def test_modules_exchanged_after_the_probe() -> None:
    class Shifted(torch.nn.Linear):
        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            return super().forward(hidden.roll(1, dims=1))

    model = probed()
    layer = model.model.layers[0].mlp
    layer.down_proj = Shifted(64, 32, bias=False)
    assert_falls_back(model, inputs, "self-probe")


def test_dropout_in_a_part_that_trains() -> None:
    """It draws from the generators: they are where they were after the probe."""
    model = probed()
    model.model.layers[0].mlp.act_fn = torch.nn.Sequential(torch.nn.SiLU(), torch.nn.Dropout(0.5))
    torch.manual_seed(5)
    state = torch.get_rng_state()
    assert probe.probed_reason(model, {}, None) is not None
    assert torch.equal(torch.get_rng_state(), state)
    assert_falls_back(model, inputs, "self-probe")
    model.eval()
    assert_native(model)


# The loop of plain decoding


class Counting(LlamaForCausalLM):
    """Keeps the number of the step."""

    def _update_model_kwargs_for_generation(self, *args: Any, **kwargs: Any) -> Any:
        self.steps = getattr(self, "steps", 0) + 1
        return super()._update_model_kwargs_for_generation(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = super().forward(*args, **kwargs)
        output.logits = output.logits.roll(getattr(self, "steps", 0), -1)
        return output


class Rewriting(LlamaForCausalLM):
    """Rewrites ids behind the prompt."""

    def prepare_inputs_for_generation(self, input_ids: torch.Tensor, **kwargs: Any) -> Any:
        given = super().prepare_inputs_for_generation(input_ids, **kwargs)
        return given | {"input_ids": given["input_ids"].where(given["input_ids"] != 7, 9)}


class Prefilling(LlamaForCausalLM):
    def _prefill(self, *args: Any, **kwargs: Any) -> Any:
        return super()._prefill(*args, **kwargs)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (Counting, "_update_model_kwargs_for_generation"),
        (Rewriting, "prepare_inputs_for_generation"),
        (Prefilling, "_prefill"),
    ],
)
def test_classes_that_take_part_in_the_loop(kind: type[LlamaForCausalLM], name: str) -> None:
    def fresh() -> LlamaForCausalLM:
        return own_llama(kind)

    expected = fresh().generate(**inputs())
    with pytest.warns(FallbackWarning, match=f"own {name} of {__name__}") as caught:
        assert lade.generate(fresh(), **inputs()).tolist() == expected.tolist()
    assert len(caught) == 1


@pytest.mark.parametrize("decorated", [False, True])
@pytest.mark.parametrize("name", ["prepare_inputs_for_generation", "_update_model_kwargs_for_generation"])
def test_instances_that_take_part_in_the_loop(name: str, decorated: bool) -> None:
    model = probed()
    own = getattr(model, name)

    def replaced(*args: Any, **kwargs: Any) -> Any:
        return own(*args, **kwargs)

    setattr(model, name, functools.wraps(own)(replaced) if decorated else replaced)
    assert_falls_back(model, inputs, f"own {name} of {__name__}")
    delattr(model, name)
    assert_native(model)


def test_a_class_of_transformers_changed_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    model, own = probed(), LlamaForCausalLM.prepare_inputs_for_generation

    def replaced(self: Any, *args: Any, **kwargs: Any) -> Any:
        return own(self, *args, **kwargs)

    monkeypatch.setattr(LlamaForCausalLM, "prepare_inputs_for_generation", replaced)
    assert_falls_back(model, inputs, f"prepare_inputs_for_generation of {__name__}")


# PEFT


def lora(*names: str) -> peft.PeftModel:
    settings = peft.LoraConfig(task_type="CAUSAL_LM", r=4, init_lora_weights=False, target_modules=["q_proj", "v_proj"])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = peft.get_peft_model(own_llama(), settings, adapter_name=names[0])
        for name in names[1:]:
            model.add_adapter(name, settings)
    return model.eval()


def test_adapters_of_peft_are_no_reason() -> None:
    model = lora("one", "two")
    for name in ("one", "two", "one"):
        model.set_adapter(name)
        assert_native(model)


def test_rows_with_adapters_of_their_own(augmented: None) -> None:
    """PEFT hooks serve so many rows in this order; a draft has others."""
    model = lora("one", "two")
    assert_native(model)
    kwargs = words(5, 9, 3) | GREEDY | {"adapter_names": ["one", "two", "__base__"], "eos_token_id": [5, 9, 20, 31]}
    lade.restore_all()
    expected = model.generate(**kwargs)
    lade.augment_all()
    with pytest.warns(FallbackWarning, match="a forward hook on .* of peft.tuners"):
        assert model.generate(**kwargs).tolist() == expected.tolist()
    assert_native(model)


def test_a_printed_text_of_its_own_changes_nothing() -> None:
    """As torchao gives every layer whose weights it quantises."""
    model = own_llama()
    model.lm_head.extra_repr = lambda: "int4"
    lade.generate(model, **words(5), do_sample=False, max_new_tokens=3)
    assert lade.last_stats().fallback is None
