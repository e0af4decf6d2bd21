"""Sub-layers that are left out: they add nothing, the model is as it was, and nobody else notices."""

import threading
from typing import Any

import pytest
import torch
from families import BRANCHABLE, BY_NAME, Family
from tiny import tiny_model, words
from transformers import PreTrainedModel

import lade
from lade.target.skipping import Skipping, decoder_layers
from lade.target.skipset import SkipSet, read_skip_set, skip_set, write_skip_set

FAMILIES = [family for family in BRANCHABLE if family.name != "gemma4"]


def tiny(name: str) -> PreTrainedModel:
    return tiny_model(BY_NAME[name], BY_NAME[name].attention[-1])


def state(model: PreTrainedModel) -> dict[str, dict[str, Any]]:
    return {name: dict(module.__dict__) for name, module in model.named_modules()}


def logits(model: PreTrainedModel) -> torch.Tensor:
    with torch.no_grad():
        return model(words(9)["input_ids"], use_cache=False).logits


@pytest.mark.compat
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_layer_without_both_changes_nothing(family: Family) -> None:
    """Its output is its input, in every family."""
    model = tiny_model(family, family.attention[-1])
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    def look(module: Any, inputs: Any, keywords: Any, output: Any) -> None:
        given = inputs[0] if inputs else keywords["hidden_states"]
        seen.append((given, output[0] if isinstance(output, tuple) else output))

    before, plain = state(model), logits(model)
    hook = decoder_layers(model)[1].register_forward_hook(look, with_kwargs=True)
    with Skipping(model, SkipSet((1,), (1,))).applied():
        short = logits(model)
    hook.remove()
    ((given, out),) = seen
    assert torch.allclose(given, out.view(given.shape), atol=1e-6)
    assert not torch.allclose(short, plain)
    assert torch.equal(logits(model), plain)
    after = state(model)
    assert {name: set(values) for name, values in after.items()} == {
        name: set(values) for name, values in before.items()
    }


@pytest.mark.parametrize("layers", [((0,), ()), ((), (1,)), ((0, 1), (0, 1))])
def test_each_kind_is_left_out(layers: Any) -> None:
    model = tiny("llama")
    calls: list[str] = []
    hooks = []
    skipping = Skipping(model, skip_set(layers))
    with skipping.applied():
        logits(model)  # an MLP is asked once what it returns
    for index, layer in enumerate(decoder_layers(model)):
        for kind, module in (("attention", layer.self_attn.q_proj), ("mlp", layer.mlp.up_proj)):
            hooks.append(module.register_forward_hook(lambda *_, name=f"{kind} {index}": calls.append(name)))
    with skipping.applied():
        logits(model)
    for hook in hooks:
        hook.remove()
    left = {f"attention {i}" for i in {0, 1} - set(layers[0])} | {f"mlp {i}" for i in {0, 1} - set(layers[1])}
    assert set(calls) == left


def test_the_model_is_as_it_was_after_an_error() -> None:
    model = tiny("llama")
    own = model.model.layers[0].mlp.forward
    model.model.layers[0].mlp.forward = own  # such as accelerate leaves on the instance
    try:
        before, plain = state(model), logits(model)
        with pytest.raises(KeyError), Skipping(model, SkipSet((0,), (0, 1))).applied():
            raise KeyError("inside")
        assert state(model) == before
        assert torch.equal(logits(model), plain)
    finally:
        del model.model.layers[0].mlp.forward


def test_scopes_inside_each_other() -> None:
    model, plain = tiny("llama"), logits(tiny("llama"))
    one, two = Skipping(model, SkipSet((0,), ())), Skipping(model, SkipSet((0,), (1,)))
    with one.applied():
        outer = logits(model)
        with two.applied():
            assert not torch.equal(logits(model), outer)
        assert torch.equal(logits(model), outer)
    assert torch.equal(logits(model), plain)


def test_another_thread_sees_the_whole_model() -> None:
    model = tiny("llama")
    plain, found = logits(model), []
    with Skipping(model, SkipSet((0, 1), (0, 1))).applied():
        thread = threading.Thread(target=lambda: found.append(logits(model)))
        thread.start()
        thread.join()
        assert not torch.equal(logits(model), plain)
    assert torch.equal(found[0], plain)


@pytest.mark.usefixtures("restless")
def test_threads_that_draft_at_once_write_plain_text() -> None:
    model = tiny("llama")
    kwargs = words(9) | {"do_sample": False, "max_new_tokens": 30}
    expected = model.generate(**kwargs).tolist()
    before, texts = state(model), []
    methods = [lade.SelfSpeculative(layers, tokens=4) for layers in (((0,), (1,)), ((0, 1), (0,)), ((), (0, 1)))]

    def write(method: lade.SelfSpeculative) -> None:
        texts.extend(lade.generate(model, **kwargs, method=method).tolist() for _ in range(3))

    threads = [threading.Thread(target=write, args=(method,)) for method in methods]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == [expected] * 9
    assert state(model) == before


# Files


def test_a_set_is_read_as_it_was_written(tmp_path: Any) -> None:
    path, layers = tmp_path / "skip.json", SkipSet((0, 3), (1,))
    write_skip_set(path, layers, {"speed": 2.0})
    assert read_skip_set(path) == layers
    assert lade.SelfSpeculative(path).layers == layers
    assert lade.self_speculative(layers=str(path), tokens=3).layers == layers


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("no", "is not JSON"),
        ("{}", "is not a lade skip set of version 1"),
        ('{"format": "lade skip set", "version": 2}', "is not a lade skip set of version 1"),
        ('{"format": "lade skip set", "version": 1, "attention": [0]}', "mlp"),
        ('{"format": "lade skip set", "version": 1, "attention": [1, 0], "mlp": []}', "ascending"),
        ('{"format": "lade skip set", "version": 1, "attention": 1, "mlp": []}', "skip.json"),
    ],
)
def test_another_file_is_refused_by_name(content: str, message: str, tmp_path: Any) -> None:
    (tmp_path / "skip.json").write_text(content)
    with pytest.raises(ValueError, match=message) as error:
        lade.SelfSpeculative(tmp_path / "skip.json")
    assert str(error.value).startswith(str(tmp_path / "skip.json"))


def test_a_file_that_is_no_text_is_refused_by_name(tmp_path: Any) -> None:
    (tmp_path / "skip.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="is not JSON") as error:
        lade.SelfSpeculative(tmp_path / "skip.json")
    assert str(error.value).startswith(str(tmp_path / "skip.json"))
