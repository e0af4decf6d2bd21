"""A target and its draft model: checks that the two fit, and the `SecondModel` made of them.

Knows models and the reasons for plain decoding, not how candidates are chosen.
"""

from __future__ import annotations

from typing import Any

from transformers import DynamicCache

from lade.base.arguments import check_model
from lade.base.shown import invalid
from lade.base.wrappers import unwrapped
from lade.drafters.draft_model import SecondModel
from lade.entry import fallback
from lade.facts.positions import position_limit
from lade.facts.vocabulary import readable, writable
from lade.models.families import refusal
from lade.target.call import Call
from lade.target.empty import empty_target
from lade.target.masks import layer_kinds
from lade.target.model import HFTarget
from lade.target.probe import probed_reason
from lade.target.verdicts import packs

PADDING = 1024  # entries by which vocabularies of one tokenizer may differ, as models pad them to round sizes


def check_draft(draft: Any) -> None:
    """ValueError where `draft` cannot draft for any target."""
    check_model("draft", draft)
    model = unwrapped(draft)
    if model.config.is_encoder_decoder:
        raise invalid("draft", "a causal language model with the target's tokenizer", draft)
    reason = refusal(model)
    if reason is not None:
        raise invalid("draft", f"a model that can verify a draft tree ({reason})", draft)


def check_pair(target: Any, draft: Any) -> None:
    """ValueError where the two cannot have the same tokenizer."""
    entries, own = vocabulary(target), vocabulary(draft)
    if abs(entries - own) > PADDING:
        raise ValueError(
            f"draft must have the target's tokenizer, with a vocabulary within {PADDING} of the target's {entries} "
            f"entries, got {own} entries"
        )


def reason_for_plain(draft: Any, call: Call) -> str | None:
    """Why the draft model cannot draft for a call, or `None`."""
    model = unwrapped(draft)
    config = text_config(model)
    inputs = {"attention_mask": call.model_kwargs.get("attention_mask"), "past_key_values": DynamicCache(config=config)}
    own = Call(model, call.input_ids, call.processors, call.criteria, call.generation_config, False, inputs)
    reason = fallback.reason_for_plain(own, refusal, call.input_ids.shape[0])
    if reason is None:
        reason = probed_reason(model, layer_kinds(config), position_limit(config))
    return None if reason is None else f"the draft model cannot draft: {reason}"


def second_model(draft: Any, target: HFTarget) -> SecondModel:
    """The draft model with an empty KV cache."""
    model = unwrapped(draft)
    drafting = empty_target(model, target.packed and packs(model))
    known = min(readable(target.model), writable(target.model))
    return SecondModel(drafting, readable(model), known, writable(target.model), target.model.device)


def vocabulary(model: Any) -> int:
    model = unwrapped(model)
    return min(readable(model), writable(model))


def text_config(model: Any) -> Any:
    return model.config.get_text_config(decoder=True)
