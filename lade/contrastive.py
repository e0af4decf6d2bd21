"""Contrastive decoding as a target: two models forward the same trees, each with a cache of its own; one set of scores.

Knows how both run beside each other; the rule is in `lade.contrast`, drafting and choosing go on as with one model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from transformers import DynamicCache

from lade.contrast import Contrast, contrasted
from lade.fallback import Call, generated_length, position_limit
from lade.target import HFTarget, Outputs
from lade.tree import Draft
from lade.wrappers import unwrapped


class ContrastiveTarget:
    """An expert and an amateur that decode one tree together.

    Args:
        expert: the user's model; its cache is what is given back.
        amateur: the other one, prefilled with the whole prompt by each call.
        call: the amateur's (`amateur_call`).
    """

    def __init__(self, expert: HFTarget, amateur: HFTarget, call: Call, contrast: Contrast) -> None:
        self.expert, self.amateur, self.call, self.contrast = expert, amateur, call, contrast
        self.clock = expert.clock
        self.vocabulary = min(expert.vocabulary, amateur.vocabulary)

    @property
    def order(self) -> list[int]:
        return self.expert.order

    def prefill(self, input_ids: torch.Tensor, generation_config: Any, model_kwargs: dict[str, Any]) -> Outputs:
        """The scores after the last prompt token, as node 0 (`HFTarget.prefill`)."""
        expert = self.expert.prefill(input_ids, generation_config, model_kwargs)
        amateur = self.amateur.prefill(self.call.input_ids, generation_config, self.call.model_kwargs)
        return self._outputs(expert, amateur)

    def depth_limit(self, slot: int, remaining: int) -> int:
        return min(self.expert.depth_limit(slot, remaining), self.amateur.depth_limit(slot, remaining))

    def room(self, rows: int) -> int:
        return min(self.expert.room(rows), self.amateur.room(rows))

    def forward(self, drafts: Sequence[Draft]) -> Outputs:
        """One forward of each model for the drafts of the first n rows; it counts as one."""
        return self._outputs(self.expert.forward(drafts), self.amateur.forward(drafts))

    def spoiled(self, slots: Sequence[int], outputs: Outputs) -> list[int]:
        return outputs.nan_roots(slots)

    def discard(self, slots: Sequence[int]) -> None:
        self.expert.discard(slots)
        self.amateur.discard(slots)

    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        self.expert.keep(paths)
        self.amateur.keep(paths)

    def swap(self, one: int, other: int) -> None:
        self.expert.swap(one, other)
        self.amateur.swap(one, other)

    def export(self, stock: DynamicCache) -> None:
        """The expert's cache; a call that goes on from it prefills the amateur with the whole text again."""
        self.expert.export(stock)

    def _outputs(self, expert: Outputs, amateur: Outputs) -> Outputs:
        return replace(expert, logits=contrasted(expert.logits, amateur.logits, self.contrast))


def amateur_call(call: Call, contrast: Contrast) -> Call:
    """The same call as the amateur gets it: the whole text, and a cache of its own.

    Raises:
        ValueError: the call does not hold the whole text.
    """
    width, positions = call.input_ids.shape[1], call.model_kwargs.get("position_ids")
    if _continues_without_text(call):
        raise ValueError(
            f"input_ids hold the last {width} tokens of the text: allowed with contrast is the whole text, "
            "as the amateur has no cache"
        )
    if positions is not None and positions.shape[-1] != width:
        raise ValueError(f"position_ids of shape {tuple(positions.shape)}: with contrast one per token is needed")
    amateur = unwrapped(contrast.amateur)
    config = amateur.config.get_text_config(decoder=True)
    given = {name: call.model_kwargs.get(name) for name in ("attention_mask", "position_ids")}
    inputs = {name: tensor.to(amateur.device) for name, tensor in given.items() if tensor is not None}
    inputs |= {"past_key_values": DynamicCache(config=config), "use_cache": True}
    if amateur._supports_logits_to_keep():
        inputs["logits_to_keep"] = 1
    return replace(call, model=amateur, input_ids=call.input_ids.to(amateur.device), model_kwargs=inputs)


def _continues_without_text(call: Call) -> bool:
    """Whether the cache holds tokens that `input_ids` lack; told as transformers' prefill tells it."""
    cache, mask = (call.model_kwargs.get(name) for name in ("past_key_values", "attention_mask"))
    if cache is None or not cache.get_seq_length():
        return False
    length = mask.shape[1] if mask is not None else getattr(call.generation_config, "_mask_length", -1)
    return bool(length != call.input_ids.shape[1])


def check_positions(call: Call) -> None:
    """ValueError where the text may outgrow the amateur's positions.

    Args:
        call: the amateur's.
    """
    limit = position_limit(call.text_config)
    if limit is None:
        return
    mask, width = call.model_kwargs.get("attention_mask"), call.input_ids.shape[1]
    prompt = width if mask is None else int(mask.sum(-1).max())
    longest = prompt + generated_length(call) - width
    if longest > limit:
        raise ValueError(f"contrast: a text of {longest:g} tokens: the amateur has {limit} positions")
