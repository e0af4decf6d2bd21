"""Exchanges of host and accelerator: one each way per step, counted on the `meta` device, whose values are zeros."""

import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from families import BY_NAME, VOCAB
from tiny import FIRST_WORD
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    LogitsProcessorList,
    PreTrainedModel,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
)

import lade
from lade.core.noise import Noise
from lade.core.request import Request
from lade.core.stats import Clock
from lade.drafters.factory import drafter_for
from lade.engine.emission import AtOnce, TokenByToken
from lade.engine.loop import DecodeLoop
from lade.engine.scores import Record
from lade.engine.stopping import HostRule
from lade.engine.stream import Stream
from lade.engine.text import Text
from lade.facts.positions import position_limit
from lade.target.masks import layer_kinds
from lade.target.model import HFTarget
from lade.target.probe import empty_cache
from lade.target.verdicts import Verdict, note

META = torch.device("meta")
MODELS = [("llama", "sdpa"), ("mistral-sliding", "sdpa"), ("gemma3", "sdpa"), ("llama", "eager")]  # the last is padded
PACKAGE = str(Path(lade.__file__).parent)


class Transfers(TorchDispatchMode):
    """Notes every copy between the host and the device, and the line of ours that asks for it."""

    def __init__(self) -> None:
        super().__init__()
        self.down: list[str] = []
        self.up: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = str(function)
        if "_local_scalar_dense" in name and args[0].device == META:
            self.up.append(asked_from())
            return args[0].new_zeros((), device="cpu").item()
        if "_to_copy" in name and (goal := kwargs.get("device")) is not None and args[0].device != goal:
            if torch.device(goal).type == "cpu":
                self.up.append(asked_from())
                return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
            self.down.append(asked_from())
        if ".copy_" in name and args[0].device != args[1].device:
            (self.down if args[0].device == META else self.up).append(asked_from())
        return function(*args, **kwargs)


def asked_from() -> str:
    lines = [frame for frame in traceback.extract_stack() if frame.filename.startswith(PACKAGE)]
    return f"{lines[-1].filename.removeprefix(PACKAGE)}:{lines[-1].lineno}" if lines else "elsewhere"


def model_on_meta(name: str, attention: str) -> PreTrainedModel:
    """One layer of each kind: operations of this device are slow, and an exchange of any layer is one too many."""
    family = BY_NAME[name]
    layers = len(family.config.get("layer_types", "1"))
    with META:
        config = AutoConfig.for_model(family.model_type, **family.config | {"num_hidden_layers": layers})
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()
    note(model, Verdict(None, None if attention == "sdpa" else "it is eager"))
    return model


@pytest.fixture(autouse=True)
def no_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    """The meta device has no generator whose state could be read."""
    monkeypatch.setattr(Noise, "_state", lambda self: None)


def greedy(request: Request) -> Any:
    return AtOnce([request], Stream(None, [request], 0), None, HostRule(frozenset()), None)


def warped(request: Request) -> Any:
    processors = LogitsProcessorList([TemperatureLogitsWarper(0.7), TopKLogitsWarper(8)])
    return AtOnce([request], Stream(None, [request], 0), processors, HostRule(frozenset()), Noise(1, META))


def reading(request: Request) -> Any:
    """Processors that read the text, token by token."""
    text = Text(torch.zeros(1, request.prompt_length, dtype=torch.long, device=META))
    processors = LogitsProcessorList([RepetitionPenaltyLogitsProcessor(1.3)])
    stream = Stream(None, [request], 0)
    return TokenByToken([request], stream, processors, HostRule(frozenset()), text, None, Record(False, False))


WAYS = [(greedy, "auto"), (warped, "auto"), (reading, "auto"), (greedy, "lookahead")]
LENGTHS = (9, 4, 17)


def requests_of(emission: Callable[[Request], Any], lengths: Sequence[int]) -> list[Request]:
    requests = []
    for length in lengths:
        prompt = [FIRST_WORD + (7 * index + length) % (VOCAB - FIRST_WORD) for index in range(length)]
        request = Request(0, [*prompt[: length // 2], 0, 0, 0, *prompt[length // 2 :], 0], length + 4, 14)
        request.emission = emission(request)
        requests.append(request)
    return requests


@pytest.mark.parametrize(
    ("name", "attention", "lengths", "emission", "mode"),
    [
        *((*model, LENGTHS, *WAYS[0]) for model in MODELS),
        *((*model, LENGTHS, *way) for model in (MODELS[0], MODELS[-1]) for way in WAYS[1:]),  # packed, and padded
        *((*MODELS[0], (9,), *way) for way in WAYS[1:3]),
    ],
)
@torch.no_grad()
def test_one_exchange_each_way(name: str, attention: str, lengths: tuple[int, ...], emission: Any, mode: str) -> None:
    """Prompts are read in chunks beside drafts, caches grow, and requests leave meanwhile."""
    model = model_on_meta(name, attention)
    text_config = model.config.get_text_config(decoder=True)
    kinds, limit = layer_kinds(text_config), position_limit(text_config)
    target = HFTarget(model, empty_cache(model), kinds, limit, Clock())
    config = lade.LookaheadConfig(mode=mode, budget=12, adapt=False, pool_from_prompt=mode == "lookahead" or None)
    loop = DecodeLoop(target, drafter_for(model, config.settled(), packed=target.packed), len(lengths), step_tokens=8)
    requests = requests_of(emission, lengths)
    for request in requests:
        loop.submit(request)
    left, widest = True, 0
    while left:
        emitted = sum(request.emitted for request in requests)
        with Transfers() as transfers:
            left = loop.step()
        new = sum(request.emitted for request in requests) - emitted
        forwards = 1 if target.packed else 1 + len(lengths)
        assert len(transfers.down) <= forwards, transfers.down
        assert len(transfers.up) <= forwards + (new if emission is reading else 0), transfers.up
        widest = max(widest, new)
    assert all(request.finished for request in requests)
    assert widest > len(lengths), "no draft was accepted"
