"""Checks of the arguments of `model.generate` that lade reads itself, before any forward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from lade.base.shown import invalid
from lade.facts.vocabulary import readable

# Arguments that choose another decoding method of transformers -> the value that does not.
STRATEGIES = {"num_beams": 1, "num_beam_groups": 1, "penalty_alpha": None, "dola_layers": None}


def check_inputs(model: Any, input_ids: Any, kwargs: Mapping[str, Any]) -> int:
    """Check the prompts and the decoding strategy of a call.

    Args:
        input_ids: must be a [B, P] tensor of token ids.
        kwargs: the other arguments of `model.generate`.

    Returns:
        B, the number of prompts.

    Raises:
        ValueError: names the argument, what is allowed and what was given.
    """
    if "inputs_embeds" in kwargs:
        raise invalid("inputs_embeds", "left out (the prompt is given as input_ids)", kwargs["inputs_embeds"])
    _check_ids(input_ids, readable(model))
    _check_mask(input_ids, kwargs)
    _check_positions(input_ids, kwargs)
    _check_length(model, input_ids, kwargs.get("attention_mask"))
    check_strategy(kwargs.get("generation_config"), kwargs)
    return int(input_ids.shape[0])


def check_strategy(generation_config: Any, kwargs: Mapping[str, Any] | None = None) -> None:
    """ValueError where the call asks for another decoding method than greedy decoding and sampling.

    Args:
        kwargs: arguments of the call; they override the generation config.
    """
    for name, plain in STRATEGIES.items():
        value = (kwargs or {}).get(name, getattr(generation_config, name, plain))
        if value not in (plain, None):
            raise invalid(name, f"{plain} (lookahead is for greedy decoding and sampling)", value)


def _check_ids(input_ids: Any, size: int) -> None:
    if not isinstance(input_ids, torch.Tensor) or input_ids.dim() != 2:
        hint = ": a tokenizer's output is given as **inputs" if isinstance(input_ids, Mapping) else ""
        raise ValueError(f"input_ids must be a tensor of shape [rows, tokens], got {_shape(input_ids)}{hint}")
    if input_ids.is_floating_point() or input_ids.dtype == torch.bool:
        raise ValueError(f"input_ids must be a tensor of integers, got {input_ids.dtype}")
    if 0 in input_ids.shape:
        raise ValueError(f"input_ids must have rows of at least one token, got {_shape(input_ids)}")
    low, high = int(input_ids.min()), int(input_ids.max())
    if low < 0 or high >= size:
        raise ValueError(f"input_ids must hold token ids from 0 to {size - 1}, got {low if low < 0 else high}")


def _check_mask(input_ids: torch.Tensor, kwargs: Mapping[str, Any]) -> None:
    mask = kwargs.get("attention_mask")
    if mask is None:
        return
    shape = tuple(input_ids.shape)
    fits = isinstance(mask, torch.Tensor) and mask.dim() == 2 and mask.shape[0] == shape[0]
    if not fits or (kwargs.get("past_key_values") is None and tuple(mask.shape) != shape):
        raise ValueError(f"attention_mask must be a tensor of shape {shape}, as input_ids, got {_shape(mask)}")
    if not bool(mask.any(dim=1).all()):
        raise ValueError("attention_mask must let each row have a token, got an empty prompt")


def _check_positions(input_ids: torch.Tensor, kwargs: Mapping[str, Any]) -> None:
    positions = kwargs.get("position_ids")
    if positions is None or kwargs.get("past_key_values") is not None:
        return
    rows, length = input_ids.shape
    fits = isinstance(positions, torch.Tensor) and positions.dim() in (2, 3)  # of one axis, or of several
    if not fits or tuple(positions.shape[-2:]) not in {(rows, length), (1, length)}:
        raise ValueError(
            f"position_ids must be a tensor of shape {(rows, length)}, as input_ids, got {_shape(positions)}"
        )


def _check_length(model: Any, input_ids: torch.Tensor, mask: torch.Tensor | None) -> None:
    longest = input_ids.shape[1] if mask is None else int(mask.sum(dim=1).max())
    positions = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    if positions is not None and 0 < positions < longest:  # -1 stands for no limit (XLNet)
        raise ValueError(f"input_ids must be at most the model's {positions} positions long, got {longest} tokens")


def _shape(value: Any) -> str:
    return f"shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
