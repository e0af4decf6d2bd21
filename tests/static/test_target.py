"""A decode loop whose forwards are static steps: prompts in chunks, drafts, rows that join and leave."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from families import BY_NAME
from test_transfers import Transfers, greedy, model_on_meta
from tiny import tiny_model, words

import lade
from lade.core.noise import Noise
from lade.core.request import Request
from lade.core.stats import Clock
from lade.core.tree import chain
from lade.drafters.factory import drafter_for
from lade.engine.emission import AtOnce
from lade.engine.loop import DecodeLoop
from lade.engine.stopping import HostRule
from lade.engine.stream import Stream
from lade.kernels.reference import attend
from lade.static.graphs import Graphs
from lade.static.target import StaticTarget

CONFIG = lade.LookaheadConfig(mode="auto", budget=12, adapt=False)
NEW = 24


def loop_of(model: Any, slots: int, kernel: Any = None) -> DecodeLoop:
    target = StaticTarget(model, slots, 60, Clock(), inverse_temperature=1.3, kernel=kernel)
    return DecodeLoop(target, drafter_for(model, CONFIG.settled(), packed=True), slots, step_tokens=16)


def requests_of(prompts: Sequence[Sequence[int]]) -> list[Request]:
    requests = [Request(0, list(prompt), len(prompt), NEW) for prompt in prompts]
    for request in requests:
        request.emission = greedy(request)
    return requests


@pytest.mark.parametrize("kernel", [None, attend], ids=("masks", "kernel"))
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
    assert loop.target.clock.steps < len(lengths) * NEW * 0.9
    assert not loop.target.lengths
    assert not any(stack[:, :, : loop.target.slots.offsets[-1]].any() for stack in loop.target.slots.stacks)


@torch.no_grad()
def test_two_transfers_in_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no request ends and none is NaN. The device's walk is not known on the meta device."""
    monkeypatch.setattr(StaticTarget, "keep", lambda self, slots, paths: None)
    model = model_on_meta("llama", "sdpa")
    loop, requests = loop_of(model, slots=2), requests_of([[5, 6, 7, 5, 6], [9] * 20])
    for request in requests:
        loop.submit(request)
    steps = 0
    while not any(request.finished for request in requests):
        with Transfers() as transfers:
            loop.step()
        if not any(request.finished for request in requests):
            assert len(transfers.down) == len(transfers.up) == 1, (transfers.down, transfers.up)
            steps += 1
    assert steps > 3


@torch.no_grad()
def test_requests_that_choose_by_themselves() -> None:
    model = tiny_model(BY_NAME["llama"], "sdpa", torch.float64)
    loop, (request,) = loop_of(model, slots=1), requests_of([[5, 6, 7]])
    request.emission = AtOnce(
        [request], Stream(None, [request], 0), None, HostRule(frozenset()), Noise(1, model.device)
    )
    loop.submit(request)
    assert not loop.step()
    assert isinstance(request.error, NotImplementedError)
    loop.target.open(0, 3, 9)
    loop.target.forward([0], [chain([5, 6, 7], asked=True)])
    with pytest.raises(RuntimeError, match=r"got the path \[0, 2\] for \[0, 1, 2\]"):
        loop.target.keep([0], [[0, 2]])


def test_what_has_no_static_step() -> None:
    model = tiny_model(BY_NAME["llama"], "sdpa", torch.float64)
    target = StaticTarget(model, 1, 60, Clock())
    with pytest.raises(ValueError, match="most must be at most 60, got 61"):
        target.open(0, 10, 61)
    with pytest.raises(ValueError, match="step must have one slot to be fused, got 2"):
        Graphs(StaticTarget(model, 2, 60, Clock()).step, fused=True)
    with pytest.raises(ValueError, match="index of tokens in its cache"):
        StaticTarget(tiny_model(BY_NAME["llama4"], "sdpa", torch.float64), 1, 60, Clock())
