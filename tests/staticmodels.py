"""Tiny models whose static steps may have several rows, and how they are sampled."""

import torch
from families import BY_NAME
from tiny import tiny_model
from transformers import LogitsProcessorList, PreTrainedModel, TemperatureLogitsWarper, TopKLogitsWarper

from lade.static import attention

FAMILIES = ("llama", "qwen3", "gemma3", "gpt2", "phi", "cohere2")
WARPERS = LogitsProcessorList([TemperatureLogitsWarper(0.8), TopKLogitsWarper(20)])


def model_for(name: str, rows: int) -> PreTrainedModel:
    attention.register()
    return tiny_model(BY_NAME[name], "sdpa" if rows == 1 else attention.NAME, torch.float64)
