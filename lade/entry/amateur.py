"""The amateur's part of a contrastive call: its inputs and its KV cache."""

from __future__ import annotations

from dataclasses import replace

from transformers import DynamicCache

from lade.base.wrappers import unwrapped
from lade.facts.positions import position_limit
from lade.target.call import Call, continues_without_text, generated_length
from lade.target.contrast import Contrast
from lade.target.nextinputs import beside_text


def amateur_call(call: Call, contrast: Contrast) -> Call:
    """The same call for the amateur, with an empty cache of its own.

    Raises:
        ValueError: `input_ids` or `position_ids` do not cover the whole text, or the call holds more than text.
    """
    if others := beside_text(call.model_kwargs):
        raise ValueError(f"contrast must be None for a call with more than text, got {', '.join(others)}")
    width, positions = call.input_ids.shape[1], call.model_kwargs.get("position_ids")
    if continues_without_text(call):
        raise ValueError(
            f"input_ids must hold the whole text with contrast (the amateur has no cache), got its last {width} tokens"
        )
    if positions is not None and positions.shape[-1] != width:
        raise ValueError(
            f"position_ids must have one position per token with contrast, got shape {tuple(positions.shape)}"
        )
    amateur = unwrapped(contrast.amateur)
    config = amateur.config.get_text_config(decoder=True)
    given = {name: call.model_kwargs.get(name) for name in ("attention_mask", "position_ids")}
    inputs = {name: tensor.to(amateur.device) for name, tensor in given.items() if tensor is not None}
    inputs |= {"past_key_values": DynamicCache(config=config), "use_cache": True}
    if amateur._supports_logits_to_keep():
        inputs["logits_to_keep"] = 1
    return replace(call, model=amateur, input_ids=call.input_ids.to(amateur.device), model_kwargs=inputs)


def check_positions(call: Call) -> None:
    """Check that the longest possible text fits the amateur's positions.

    Args:
        call: of `amateur_call`.

    Raises:
        ValueError: it does not.
    """
    limit = position_limit(call.text_config)
    if limit is None:
        return
    mask, width = call.model_kwargs.get("attention_mask"), call.input_ids.shape[1]
    prompt = width if mask is None else int(mask.sum(-1).max())
    longest = prompt + generated_length(call) - width
    if longest > limit:
        raise ValueError(f"contrast: the text must fit the amateur's {limit} positions, got {longest:g} tokens")
