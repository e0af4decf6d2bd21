"""Which calls leave the model alone: those that run no code but lade's and transformers' between forwards."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny import own_llama, words
from transformers import (
    LogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    StoppingCriteria,
    TemperatureLogitsWarper,
    TextStreamer,
)
from transformers.generation import MaxLengthCriteria

import lade
from lade.applications.serve.penalties import Penalties
from lade.engine.purity import leaves_alone
from lade.target.model import HFTarget


class OwnWarper(TemperatureLogitsWarper):
    pass


class OwnProcessor(LogitsProcessor):
    def __call__(self, input_ids: Any, scores: Any) -> Any:
        return scores


class OwnCriterion(StoppingCriteria):
    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        return torch.zeros(len(input_ids), dtype=torch.bool)


class OwnStreamer(TextStreamer):
    pass


def own_function(*given: Any) -> list[int]:
    return []


LADES = Penalties.__call__  # a function of lade's
LEAVING: list[dict[str, Any]] = [
    {},
    {"processors": [TemperatureLogitsWarper(0.5), Penalties(0.1, 0.2, 3)]},
    {"criteria": [MaxLengthCriteria(9)]},
    {"streamer": TextStreamer(SimpleNamespace())},  # type: ignore[arg-type]
    {"forced": LADES},
]
OTHERS: list[dict[str, Any]] = [
    {"processors": [TemperatureLogitsWarper(0.5), OwnWarper(0.5)]},
    {"processors": [OwnProcessor()]},
    {"processors": [PrefixConstrainedLogitsProcessor(own_function, 1)]},
    {"criteria": [MaxLengthCriteria(9), OwnCriterion()]},
    {"streamer": OwnStreamer(SimpleNamespace())},  # type: ignore[arg-type]
    {"forced": own_function},
    {"forced": {}.get},  # of no module
]


@pytest.mark.parametrize(("given", "alone"), [*((each, True) for each in LEAVING), *((each, False) for each in OTHERS)])
def test_what_runs_between_forwards(given: dict[str, Any], alone: bool) -> None:
    call: Any = SimpleNamespace(processors=given.get("processors", ()), criteria=given.get("criteria", ()))
    assert leaves_alone(call, given.get("streamer"), given.get("forced")) == alone


CALLS: dict[str, tuple[dict[str, Any], bool]] = {
    "greedy": ({}, True),
    "sampled": ({"do_sample": True, "temperature": 0.7}, True),
    "processor": ({"logits_processor": [OwnProcessor()]}, False),
    "drafts of the model": ({"method": lade.SelfSpeculative(((), (1,)), tokens=2)}, False),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("way", ["generate", "engine"])
def test_targets_hear_of_it(way: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given, alone = CALLS[name]
    model, inputs, seen, forward = own_llama(), words(9), list[bool](), HFTarget.forward

    def noted(target: HFTarget, *arguments: Any) -> Any:
        seen.append(target.undisturbed)
        return forward(target, *arguments)

    monkeypatch.setattr(HFTarget, "forward", noted)
    asked = {**inputs, "max_new_tokens": 6, "eos_token_id": None, "do_sample": False, **given}
    if way == "generate":
        lade.generate(model, **asked)
    else:
        with lade.Engine(model, method=asked.pop("method", None)) as engine:
            request = engine.submit(**asked)
            engine.run()
            assert request.error is None
    assert not seen[0]
    assert any(seen) == alone
