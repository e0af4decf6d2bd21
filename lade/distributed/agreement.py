"""What all ranks must share as a call begins: its arguments, and the state of the generator that sampling uses."""

from __future__ import annotations

import hashlib
from typing import Any

import torch

from lade.config.settings import Settings
from lade.distributed.errors import RankError
from lade.distributed.group import Group
from lade.distributed.watch import WORKING
from lade.target.call import Call, generated_length

COMPARED = ("do_sample", "eos_token_id", "temperature", "top_k", "top_p", "repetition_penalty", "min_length")


def agree(group: Group, call: Call, settings: Settings) -> None:
    """RankError where another rank makes another call; sampled calls take the state of rank 0's generator."""
    digests = group.gather(_digest(call, settings), WORKING)
    other = [rank for rank in range(group.size) if not torch.equal(digests[rank], digests[0])]
    if other:
        named = ", ".join(map(str, other))
        raise RankError(f"all ranks must make the same call, got another one (model, prompts or settings) on {named}")
    if call.generation_config.do_sample:
        _take_state(group, call.input_ids.device)


def _digest(call: Call, settings: Settings) -> torch.Tensor:
    """[2] int64"""
    config, mask = call.generation_config, call.model_kwargs.get("attention_mask")
    parts = (
        call.input_ids.tolist(),
        None if mask is None else mask.tolist(),
        generated_length(call),
        [getattr(config, name, None) for name in COMPARED],
        [type(each).__name__ for each in (*call.processors, *call.criteria)],
        settings,
        type(call.model).__name__,
    )
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=16).digest()
    return torch.frombuffer(bytearray(digest), dtype=torch.int64)


def _take_state(group: Group, device: torch.device) -> None:
    """Let the default generator of the device draw the same numbers on all ranks: those of rank 0."""
    on_host: Any = device.type == "cpu"
    state = torch.get_rng_state() if on_host else torch.get_device_module(device).get_rng_state(device)
    state = group.broadcast(state.clone())
    if group.rank:
        if on_host:
            torch.set_rng_state(state)
        else:
            torch.get_device_module(device).set_rng_state(state, device)
