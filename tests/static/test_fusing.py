"""Static steps that torch compiles: the text of plain decoding, in all sizes, and what is told where there are none."""

import gc
import logging
import weakref
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from families import BY_NAME
from tiny import own_llama, tiny_model, words
from transformers import PreTrainedModel

import lade
from lade.static import buckets, fusing, shelf
from lade.static.buckets import NODES
from lade.static.graphs import Graphs
from lade.static.inputs import Size, StepInputs
from lade.static.slots import StaticSlots
from lade.static.step import StaticStep

CONFIG = lade.LookaheadConfig(static="fused", adapt=False, budget=8)
GREEDY: dict[str, Any] = {"do_sample": False}
SAMPLED: dict[str, Any] = {"do_sample": True, "temperature": 0.8, "top_k": 20}
NOTICE = "lade: static steps of 4 rows are not fused: only those of one row can be"


@pytest.fixture(autouse=True)
def traced_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch's compiler traces it, which takes a second per size; not as it compiles it."""
    torch._dynamo.reset()
    monkeypatch.setattr(buckets, "NODES", (32,))
    monkeypatch.setattr(fusing, "BACKEND", "eager")


@pytest.fixture
def not_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what is decided around the compiler."""
    monkeypatch.setattr(fusing, "compiled", lambda method: method)


def model_of(name: str) -> PreTrainedModel:
    return tiny_model(BY_NAME[name], "sdpa", torch.float64)


def assert_plain(model: PreTrainedModel, way: str, config: Any = CONFIG, **kwargs: Any) -> None:
    """A call that decodes in this way gives plain decoding's text."""
    kwargs = {"max_new_tokens": 16, **kwargs}
    torch.manual_seed(3)
    plain = model.generate(**kwargs)
    torch.manual_seed(3)
    assert torch.equal(lade.generate(model, **kwargs, config=config), plain)
    stats = lade.last_stats()
    assert (stats.not_static, set(stats.attention)) == (None, {way})
    assert stats.steps < stats.new_tokens


@pytest.mark.parametrize("name", ["gemma3", "gpt2"])
def test_texts_of_plain_decoding(name: str) -> None:
    for way in (GREEDY, SAMPLED):
        assert_plain(model_of(name), "static fused", **words(9), **way)


def test_steps_of_several_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "NODES", (1, 8, 32))
    model = own_llama().double()
    for way in (GREEDY, SAMPLED):
        assert_plain(model, "static fused", **words(9), **way)
    assert {size.nodes for size in shelf._kept[model].graphs.sizes} == {1, 8, 32}


def test_drafts_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = list[str]()
    compiled = fusing.compiled
    monkeypatch.setattr(fusing, "compiled", lambda method: traced.append(method.__name__) or compiled(method))
    config = lade.LookaheadConfig(static="fused", device_drafts=True, adapt=False, budget=8)
    assert_plain(own_llama().double(), "static fused", config, **words(9), **GREEDY, max_new_tokens=24)
    assert lade.last_stats().proposed.keys() == {"device"}
    assert "grow" in traced


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("way", [GREEDY, SAMPLED], ids=("greedy", "sampled"))
def test_texts_by_the_compiler(way: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert fusing.BACKEND == "inductor"
    assert_plain(model_of("llama"), "static fused", **words(9), **way)


def graphs_of(model: PreTrainedModel, slots: int = 1, **kwargs: Any) -> Graphs:
    made = StaticSlots(shapes_of(model), slots, 600, model.device)
    return Graphs(StaticStep(model, made, **kwargs), fused=True)


@torch.no_grad()
def shapes_of(model: PreTrainedModel) -> Any:
    return shelf.shapes_of(model)


class Doubling:
    """As much of a step as the compiler is asked for."""

    def core(self, inputs: StepInputs) -> tuple[torch.Tensor, ...]:
        return (2 * inputs.ids,)

    def attending(self, traced: bool) -> AbstractContextManager[None]:
        assert traced
        return nullcontext()


def test_all_sizes_are_compiled() -> None:
    """torch's compiler makes eight versions of one code."""
    step: Any = Doubling()
    for nodes in NODES:
        size = Size(nodes, 1, 1)
        (found,) = fusing.fused(step)(StepInputs(torch.ones(size.numbers, dtype=torch.long), size))
        assert found.tolist() == [2] * nodes


def test_steps_that_cannot_be_fused() -> None:
    model, kernel = model_of("llama"), lambda *args: torch.zeros(0)
    with pytest.raises(ValueError, match="step must have one slot to be fused, got 3"):
        graphs_of(model, slots=3)
    with pytest.raises(ValueError, match="step must have no kernel to be fused, got one"):
        graphs_of(model, kernel=kernel)


def test_several_rows_are_told_once(not_traced: None, caplog: pytest.LogCaptureFixture) -> None:
    model = own_llama().double()
    with caplog.at_level(logging.WARNING):
        assert_plain(model, "static", **words(9, 4, 5, 6), **GREEDY)
        assert_plain(model, "static fused", **words(9), **GREEDY)
        assert_plain(model, "static", **words(9, 4, 5, 6), **GREEDY)
        for static, way in ((True, "static"), ("fused", "static fused"), (1, "static")):
            config = lade.LookaheadConfig(static=static, adapt=False, budget=8)
            assert_plain(model, way, config, **words(9), **GREEDY)
    assert caplog.messages == [NOTICE]


def test_what_the_compiler_cannot_do(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def failing(module: torch.fx.GraphModule, inputs: Any) -> Any:
        raise ValueError("no compiler")

    monkeypatch.setattr(fusing, "BACKEND", failing)
    model = own_llama().double()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert_plain(model, "static", **words(9), **GREEDY)
    (message,) = caplog.messages
    assert message.startswith("lade: static steps are not fused: torch's compiler failed: BackendCompilerFailed: ")
    assert "no compiler" in message
    assert "\n" not in message


def test_an_engine_of_one_slot() -> None:
    model, prompt = model_of("llama"), words(9)["input_ids"]
    with lade.Engine(model, CONFIG, slots=1) as engine:
        requests = [engine.submit(prompt, max_new_tokens=16, do_sample=False) for _ in range(2)]
        engine.run()
        assert engine.not_static is None
        assert "static fused" in engine._target.clock.attention
    plain = model.generate(prompt, max_new_tokens=16, do_sample=False)[0].tolist()
    assert [request.tokens for request in requests] == 2 * [plain]


def test_graphs_outlive_a_call_and_not_the_model(not_traced: None) -> None:
    model = own_llama().double()
    assert_plain(model, "static fused", **words(9), **GREEDY)
    graphs = shelf._kept[model].graphs
    assert_plain(model, "static fused", **words(12), **GREEDY)
    assert shelf._kept[model].graphs is graphs
    left = weakref.ref(model)
    del model
    gc.collect()
    assert left() is None


@pytest.mark.parametrize("value", ["Fused", "", "true", 2, 0.0, [1], torch.ones(2)], ids=str)
def test_other_values_are_refused(value: Any) -> None:
    for name, given in (("static", lade.LookaheadConfig), ("STATIC", lade.config_lade)):
        with pytest.raises(ValueError, match=rf"^{name} must be True, False, 1, 0, 'fused' or None, got "):
            given(**{name: value})


def test_the_setting_of_the_process(not_traced: None, default_settings: None) -> None:
    lade.config_lade(STATIC="fused", ADAPT=False, BUDGET=8)
    assert_plain(own_llama().double(), "static fused", None, **words(9), **GREEDY)
