"""A decode loop whose forwards of drafts are static steps: rows that join and leave, two transfers."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from families import BY_NAME
from multimodal import BY_TYPE, image_model, image_prompt
from test_transfers import Transfers, greedy, model_on_meta, warped
from tiny import tiny_model, words

import lade
from lade.core.request import Request
from lade.core.stats import Clock
from lade.drafters.factory import drafter_for
from lade.engine.loop import DecodeLoop
from lade.entry.submission import prepared
from lade.facts.positions import position_limit
from lade.kernels.reference import attend
from lade.static import shelf
from lade.static.graphs import Graphs
from lade.static.readback import Readback
from lade.static.step import StaticStep
from lade.static.target import StaticTarget
from lade.target.call import prefill_arguments
from lade.target.masks import layer_kinds
from lade.target.model import HFTarget
from lade.target.nextinputs import next_inputs
from lade.target.probe import empty_cache

CONFIG = lade.LookaheadConfig(mode="auto", budget=12, adapt=False)
NEW = 14


def target_of(model: Any, slots: int, kernel: Any = None) -> StaticTarget:
    config = model.config.get_text_config(decoder=True)
    eager = HFTarget(model, empty_cache(model), layer_kinds(config), position_limit(config), Clock())
    graphs = shelf._graphs(model, slots, tokens=60)
    return StaticTarget(eager, Graphs(StaticStep(model, graphs.step.slots, eager.vocabulary, kernel)))


def loop_of(model: Any, slots: int, kernel: Any = None) -> DecodeLoop:
    drafter = drafter_for(model, CONFIG.settled(), packed=True)
    return DecodeLoop(target_of(model, slots, kernel), drafter, slots, step_tokens=16)


def requests_of(prompts: Sequence[Sequence[int]], emission: Any = greedy) -> list[Request]:
    requests = [Request(0, list(prompt), len(prompt), NEW) for prompt in prompts]
    for request in requests:
        request.emission = emission(request)
        request.inverse_temperature = 1.3
    return requests


@pytest.fixture(params=["masks", "kernel", "kernels"])
def kernel(request: pytest.FixtureRequest) -> Any:
    """What computes attention; kernels may write keys and values, too."""
    if request.param == "kernels":
        request.getfixturevalue("interpreter")
    return None if request.param == "masks" else attend


@pytest.mark.parametrize(("name", "lengths"), [("llama", (9,)), ("gemma3", (9, 21, 4, 13))], ids=("alone", "four"))
@torch.no_grad()
def test_texts_of_plain_decoding(name: str, lengths: tuple[int, ...], kernel: Any) -> None:
    """In fewer slots than requests."""
    model = tiny_model(BY_NAME[name], "sdpa", torch.float64)
    prompts = [words(length, seed=length)["input_ids"] for length in lengths]
    requests = requests_of([prompt[0].tolist() for prompt in prompts])
    loop = loop_of(model, min(3, len(lengths)), kernel)
    for request in requests:
        loop.submit(request)
    while loop.step():
        pass
    for request, prompt in zip(requests, prompts, strict=True):
        assert request.error is None
        assert request.tokens == model.generate(prompt, do_sample=False, max_new_tokens=NEW)[0].tolist()
    target = loop.target
    assert target.clock.attention["static"] < len(lengths) * NEW * 0.9
    assert not target.lengths
    assert not target.eager.positions
    slots = target.graphs.step.slots
    assert not any(stack[:, :, : slots.offsets[-1]].any() for stack in slots.stacks)


class Event:
    """A CUDA event of copies that have been made."""

    waits = 0

    def record(self, stream: object) -> None:
        """Nothing is left to do."""

    def synchronize(self) -> None:
        self.waits += 1


@torch.no_grad()
def test_steps_are_read_from_memory_that_later_ones_overwrite(monkeypatch: pytest.MonkeyPatch) -> None:
    """As from a CUDA device."""
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    model, prompt, event = tiny_model(BY_NAME["llama"], "sdpa", torch.float64), words(9)["input_ids"], Event()
    (request,), loop = requests_of([prompt[0].tolist()]), loop_of(model, slots=1)
    loop.target.graphs.back = Readback(event)
    loop.submit(request)
    while loop.step():
        pass
    assert request.tokens == model.generate(prompt, do_sample=False, max_new_tokens=NEW)[0].tolist()
    assert event.waits == loop.target.clock.attention["static"] > 3


@pytest.mark.parametrize("emission", [greedy, warped])
@torch.no_grad()
def test_two_transfers_in_every_step(emission: Any, no_generator: None) -> None:
    """From the second step on, where no request ends and none reads its prompt."""
    model = model_on_meta("llama", "sdpa")
    loop, requests = loop_of(model, slots=2), requests_of([[5, 6, 7, 5, 6], [9] * 8], emission)
    for request in requests:
        request.limit = 100
        loop.submit(request)
    with Transfers():
        loop.step()  # reads the prompts
        assert len(loop.target.lengths) == 2
        loop.step()  # in which the slots' temperatures are not known yet
    steps = 0
    while not any(request.finished for request in requests):
        with Transfers() as transfers:
            loop.step()
        if not any(request.finished for request in requests):
            assert len(transfers.down) == len(transfers.up) == 1, (transfers.down, transfers.up)
            steps += 1
    assert steps > 3


@pytest.fixture
def no_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    """The meta device has no generator whose state could be read."""
    monkeypatch.setattr("lade.core.noise.Noise._state", lambda self: None)


@torch.no_grad()
def test_positions_behind_an_image() -> None:
    """They are fewer than its tokens, also in a larger slot and in one that moves back."""
    kind = BY_TYPE["qwen2_vl"]
    model = image_model(kind)
    call = prepared(model, **image_prompt(kind, 9), max_new_tokens=NEW)
    arguments, target = prefill_arguments(call), target_of(model, 2)
    roots = next_inputs(model, call.input_ids, call.model_kwargs).of_roots(1)
    assert roots is not None
    (position,) = roots
    assert position < call.input_ids.shape[1]
    target.eager.position_limit = limit = 100
    target.open(1, call.input_ids.shape[1], arguments[-1])
    ids, config, inputs, most = arguments
    target.place(target.read(ids, config, inputs), ids, inputs, most, [1])
    assert target.graphs.step.slots.next_positions[1] == position
    assert target.depth_limit(1, limit) == limit - 1 - position
    target.make_room(target.graphs.step.slots.capacity + 1)
    assert target.graphs.step.slots.next_positions[1] == position
    target.give_back([1])
    assert target.eager.positions[1] == position
    target.close(1)
