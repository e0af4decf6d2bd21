"""Tiny models whose static steps may have several rows, how they are sampled, and prompts that they have read."""

from collections.abc import Sequence
from typing import Any

import torch
from families import BY_NAME
from test_transfers import META, model_on_meta
from tiny import tiny_model, words
from transformers import DynamicCache, LogitsProcessorList, PreTrainedModel, TemperatureLogitsWarper, TopKLogitsWarper

from lade.core.noise import Noise, choose
from lade.static import attention
from lade.static.choices import Greedy, NoiseRing, Sampled
from lade.static.slots import StaticSlots

FAMILIES = ("llama", "qwen3", "gemma3", "gpt2", "phi", "cohere2")
WARPERS = LogitsProcessorList([TemperatureLogitsWarper(0.8), TopKLogitsWarper(20)])


def model_for(name: str, rows: int) -> PreTrainedModel:
    attention.register()
    return tiny_model(BY_NAME[name], "sdpa" if rows == 1 else attention.NAME, torch.float64)


def plain(model: PreTrainedModel, lengths: Sequence[int], new: int, sampled: bool) -> list[list[int]]:
    """The new tokens of each row, which no token ends."""
    torch.manual_seed(3)
    asked = {"do_sample": True, "temperature": 0.8, "top_k": 20, "top_p": 1.0} if sampled else {"do_sample": False}
    return model.generate(**words(*lengths), **asked, max_new_tokens=new)[:, -new:].tolist()


class ReadPrompts:
    """Prompts in slots of another order, and the first token after each.

    Args:
        depth: the largest of a draft.
    """

    def __init__(self, model: PreTrainedModel, lengths: Sequence[int], tokens: int, depth: int, sampled: bool) -> None:
        self.prompts = [row[row != 0].tolist() for row in words(*lengths)["input_ids"]]  # without padding
        self.order = list(range(len(lengths)))[::-1]
        self.held = [DynamicCache(config=model.config) for _ in self.prompts]
        logits = torch.stack([
            model(input_ids=torch.tensor([prompt]), past_key_values=cache, use_cache=True).logits[0, -1]
            for prompt, cache in zip(self.prompts, self.held, strict=True)
        ]).float()  # fmt: skip
        self.slots = StaticSlots(self.held[0].layers, len(lengths), tokens, model.device)
        for slot, cache in zip(self.order, self.held, strict=True):
            self.slots.load(slot, cache.layers, emitted=1)
        self.noise = Noise(len(lengths), model.device) if sampled else None
        self.ring = NoiseRing(self.slots, logits.shape[1], depth + 1)
        all_sampled = torch.ones(len(lengths) + 1, dtype=torch.bool)
        self.chooser: Any = Sampled(WARPERS, self.ring, all_sampled) if sampled else Greedy()
        self.first = self._first_tokens(logits)

    def _first_tokens(self, logits: torch.Tensor) -> list[int]:
        if self.noise is None:
            return logits.argmax(-1).tolist()
        return choose(WARPERS(torch.zeros(len(logits), 1), logits).softmax(-1), self.noise.at(0, logits.shape[1]))


def slots_on_meta(name: str, rows: int, tokens: int) -> tuple[PreTrainedModel, StaticSlots]:
    """A model on the meta device, of which the host can read nothing, and slots for it."""
    model, cache = model_on_meta(name, "sdpa"), DynamicCache()
    model(input_ids=torch.zeros(1, 4, dtype=torch.long, device=META), past_key_values=cache, use_cache=True)
    return model, StaticSlots(cache.layers, rows, tokens, META)
