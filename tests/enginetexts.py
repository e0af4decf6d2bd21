"""Requests of an engine on tiny models, and the texts that plain decoding makes of them."""

import random
from typing import Any

import torch
from families import BY_NAME, VOCAB
from tiny import FIRST_WORD, tiny_model
from transformers import PreTrainedModel


def model_of(name: str, attention: str = "sdpa") -> PreTrainedModel:
    return tiny_model(BY_NAME[name], attention, torch.float64)


def words(count: int, seed: int = 0) -> list[int]:
    noise = random.Random(seed)
    return [noise.randrange(FIRST_WORD, VOCAB) for _ in range(count)]


def greedy(prompt: list[int], new: int, **kwargs: Any) -> dict[str, Any]:
    ids = torch.tensor([prompt])
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "max_new_tokens": new,
        "do_sample": False,
    } | kwargs


def plain(model: PreTrainedModel, prompt: list[int], new: int, seed: int = 3, **kwargs: Any) -> list[int]:
    torch.manual_seed(seed)
    text: list[int] = model.generate(**greedy(prompt, new, **kwargs))[0].tolist()
    return text
