"""Models that get trees wrong without a word: the self-probe finds them out, and disturbs nothing."""

import copy
import warnings
from typing import Any

import pytest
import torch
from families import BY_NAME
from sidebyside import assert_falls_back
from tiny import tiny_model, words
from transformers import LlamaForCausalLM

import lade

GREEDY = {"do_sample": False, "max_new_tokens": 32}


@pytest.fixture(autouse=True)
def switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("USE_LADE", raising=False)


class BlindLlama(LlamaForCausalLM):
    """Drops the mask that it is given."""

    def forward(self, *args: Any, attention_mask: Any = None, **kwargs: Any) -> Any:
        return super().forward(*args, attention_mask=None, **kwargs)


class LostLlama(LlamaForCausalLM):
    """Numbers positions on its own."""

    def forward(self, *args: Any, position_ids: Any = None, **kwargs: Any) -> Any:
        return super().forward(*args, position_ids=None, **kwargs)


class BrittleLlama(LlamaForCausalLM):
    """Knows two-dimensional masks only."""

    def forward(self, *args: Any, attention_mask: Any = None, **kwargs: Any) -> Any:
        if attention_mask is not None and attention_mask.dim() != 2:
            raise NotImplementedError("a mask of two dimensions, please")
        return super().forward(*args, attention_mask=attention_mask, **kwargs)


def broken(kind: type[LlamaForCausalLM]) -> LlamaForCausalLM:
    sound = tiny_model(BY_NAME["llama"], "sdpa")
    model = kind(copy.deepcopy(sound.config)).eval()
    model.load_state_dict(sound.state_dict())
    model.generation_config = copy.deepcopy(sound.generation_config)
    return model


@pytest.mark.parametrize("kind", [BlindLlama, LostLlama, BrittleLlama])
def test_self_probe_catches(kind: type[LlamaForCausalLM]) -> None:
    assert_falls_back(broken(kind), lambda: words(9) | GREEDY, "self-probe")


@pytest.mark.parametrize("kind", [LlamaForCausalLM, BlindLlama])
def test_self_probe_leaves_the_generator_alone(kind: type[LlamaForCausalLM]) -> None:
    model = broken(kind)
    torch.manual_seed(7)
    state = torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lade.FallbackWarning)
        lade.generate(model, **words(9), **GREEDY)
    assert torch.equal(torch.get_rng_state(), state)
