"""Counting and timing forwards from outside: what is seen, compiled ones too, and that nothing is left behind."""

import pytest
import torch
from families import BY_NAME
from tiny import own_llama, tiny_model, words
from torch import Tensor, nn
from transformers import CompileConfig, PreTrainedModel

import lade
from lade.measure.forwards import ForwardCounter, Forwards
from lade.target.model import HFTarget
from lade.target.skipping import Skipping
from lade.target.skipset import SkipSet


def tiny(name: str = "llama") -> PreTrainedModel:
    return tiny_model(BY_NAME[name], "sdpa")


class Echo(nn.Module):
    device = torch.device("cpu")

    def forward(self, input_ids: Tensor) -> Tensor:
        return input_ids


def test_the_prefill_stands_apart() -> None:
    module = Echo()
    with ForwardCounter(module, peak=True) as counter:
        module(torch.zeros(1, 3))
        module(input_ids=torch.zeros(1, 2))
        module(torch.zeros(2, 4))
        module(torch.zeros(1, 4))
    module(torch.zeros(1, 8))
    seen = counter.result()
    assert seen.per_forward == (3, 2, 4, 4)
    assert (seen.steps, seen.tokens, seen.widths, seen.mean_tokens) == (3, 10, {2: 1, 4: 2}, 10 / 3)
    assert seen.seconds >= seen.prefill_seconds + seen.model_seconds
    assert seen.host_seconds > 0
    assert seen.peak_bytes is None
    assert not module._forward_hooks
    assert not module._forward_pre_hooks


def test_a_call_without_a_step_has_no_mean() -> None:
    assert Forwards((3,), seconds=1.0, prefill_seconds=1.0, model_seconds=0.0).mean_tokens is None


def test_forwards_of_two_models() -> None:
    model, other_model = tiny("llama"), tiny("qwen2")
    with ForwardCounter(model, other_model) as counter:
        for each, width in ((other_model, 2), (model, 5), (other_model, 1), (model, 3), (model, 1)):
            each(input_ids=torch.ones(1, width, dtype=torch.long))
    seen = counter.result()
    assert (seen.per_forward, seen.widths) == ((5, 3, 1), {1: 1, 3: 1})
    assert 0 < seen.prefill_seconds < seen.seconds
    assert 0 < seen.model_seconds < seen.seconds
    assert 0 < seen.other_seconds < seen.host_seconds
    assert not model._forward_hooks


def test_packed_rows_are_counted_one_by_one() -> None:
    model = tiny()
    config = lade.LookaheadConfig(budget=1)
    lade.generate(model, **words(9), config=config, do_sample=False, max_new_tokens=2)  # the probe's forwards
    for lengths in ((9, 9, 9), (9, 4)):
        with ForwardCounter(model) as counter:
            lade.generate(model, **words(*lengths), config=config, do_sample=False, max_new_tokens=6)
        assert counter.result().per_forward == (9, 1, 1, 1, 1, 1)


def test_fused_layers_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """They do not call the model, and go on beside hooks that only count."""
    monkeypatch.setattr("lade.target.probe.can_fuse", lambda model: True)
    model, inputs = own_llama(), words(9) | {"max_new_tokens": 12, "do_sample": False}
    lade.generate(model, **inputs)
    with ForwardCounter(model) as counter, pytest.MonkeyPatch.context() as patch:
        patch.setattr(HFTarget, "logits", None)
        lade.generate(model, **inputs)
    found = counter.result()
    assert found.steps == lade.last_stats().steps
    assert found.model_seconds > 0


def test_a_model_that_drafts_for_itself_takes_no_step() -> None:
    model = tiny()
    with ForwardCounter(model) as counter:
        model(input_ids=torch.ones(1, 4, dtype=torch.long))
        with Skipping(model, SkipSet((0,), ())).applied():
            model(input_ids=torch.ones(1, 3, dtype=torch.long))
        model(input_ids=torch.ones(1, 1, dtype=torch.long))
    assert counter.result().per_forward == (4, 1)


def test_no_forward_at_all() -> None:
    with ForwardCounter(tiny("llama")) as counter:
        pass
    with pytest.raises(RuntimeError, match="no forward"):
        counter.result()


def test_counters_in_each_other() -> None:
    model = tiny()
    with ForwardCounter(model) as outer:
        model(input_ids=torch.ones(1, 4, dtype=torch.long))
        with ForwardCounter(model) as inner:
            model(input_ids=torch.ones(1, 2, dtype=torch.long))
        model(input_ids=torch.ones(1, 1, dtype=torch.long))
    assert inner.result().per_forward == (2,)
    assert outer.result().per_forward == (4, 2, 1)


@pytest.mark.slow
def test_compiled_forwards_stay_one_graph() -> None:
    """As on a GPU, where transformers compiles its static cache by itself; here told to, with nothing generated."""
    model = tiny()
    settings = CompileConfig(backend="eager", mode=None)  # type: ignore[arg-type]
    settings._compile_all_devices = True
    arguments = {"max_new_tokens": 8, "do_sample": False, "cache_implementation": "static", "compile_config": settings}
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    for _ in range(2):
        with ForwardCounter(model) as outer, ForwardCounter(model) as counter:
            text = model.generate(**words(6), **arguments)
        seen = counter.result()
        assert seen.per_forward == outer.result().per_forward == (6, *[1] * 7)
        assert 0 < seen.model_seconds < seen.seconds
    assert torch._dynamo.utils.counters["frames"]["total"] == 1
    assert "get_compiled_call" not in vars(model)
    assert text.tolist() == model.generate(**words(6), max_new_tokens=8, do_sample=False).tolist()
