"""A captured static step on a CUDA device: the same text, no wait of the host, graphs of every size."""

import pytest
import torch
from families import BY_NAME
from tiny import tiny_model, words

import lade
from lade.core.request import Request
from lade.core.stats import Clock
from lade.drafters.factory import drafter_for
from lade.engine.emission import AtOnce
from lade.engine.loop import DecodeLoop
from lade.engine.stopping import HostRule
from lade.engine.stream import Stream
from lade.static.target import StaticTarget

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
CONFIG = lade.LookaheadConfig(mode="auto", budget=12, adapt=False)
NEW = 24


@pytest.mark.parametrize("lengths", [(9,), (9, 21, 4, 13)], ids=("alone", "four"))
@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2"])
@torch.no_grad()
def test_texts_of_plain_decoding(name, lengths):
    model = tiny_model(BY_NAME[name], "sdpa", torch.float64).to("cuda")
    try:
        prompts = [words(length, seed=length)["input_ids"].to("cuda") for length in lengths]
        requests = [
            Request(0, prompt[0].tolist(), length, NEW) for prompt, length in zip(prompts, lengths, strict=True)
        ]
        target = StaticTarget(model, len(lengths), 60, Clock())
        loop = DecodeLoop(target, drafter_for(model, CONFIG.settled(), packed=True), len(lengths), step_tokens=16)
        for request in requests:
            request.emission = AtOnce([request], Stream(None, [request], 0), None, HostRule(frozenset()), None)
            loop.submit(request)
        while loop.step():
            pass
        for request, prompt in zip(requests, prompts, strict=True):
            assert request.tokens == model.generate(prompt, do_sample=False, max_new_tokens=NEW)[0].tolist()
        assert target.runner.graphs.captures, "the step was not captured"
        size = next(iter(target.runner.graphs.sizes))
        torch.cuda.set_sync_debug_mode("error")
        target.runner.graphs.sizes[size].run()
    finally:
        torch.cuda.set_sync_debug_mode("default")
        model.to("cpu")
