"""Lookahead as a transformers decoding method: decides between lookahead and plain decoding, and hands the call on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import LogitsProcessorList, StoppingCriteriaList

from lade.config.settings import LookaheadConfig
from lade.core.stats import GenerationStats, record
from lade.engine.decoding import Amateur, Decoding
from lade.engine.method import Method
from lade.entry import fallback
from lade.entry.amateur import amateur_call, check_positions
from lade.entry.reference import references_for
from lade.facts.positions import position_limit
from lade.models.families import refusal
from lade.target.call import Call
from lade.target.contrast import Contrast, check_contrast
from lade.target.masks import layer_kinds
from lade.target.probe import probed_reason


def lookahead_sample(
    model: Any,
    input_ids: torch.Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: Any,
    synced_gpus: bool = False,
    streamer: Any = None,
    *,
    config: LookaheadConfig,
    plain: Callable[..., Any],
    reference: Any = None,
    contrast: Contrast | None = None,
    method: Method | None = None,
    **model_kwargs: Any,
) -> Any:
    """Decode with lookahead, or plainly with one `FallbackWarning` where that is not possible.

    What is to be contrastive is never decoded plainly, since that would be another distribution.

    Args:
        plain: transformers' own `_sample`; everything else but `config` is as it takes them.
        reference: a text that the output may repeat (`references_of`); `generation_config.lade` may hold it too.
        contrast: decode contrastively.
        method: drafts with a model instead of what `config` says.

    Returns:
        [B, P + new] token ids, or a `GenerateDecoderOnlyOutput`, as plain decoding does.

    Raises:
        ValueError: about the reference, the generation config's entry `lade`, or what stands against contrastive
            decoding of this call, before any work.
    """
    call = Call(
        model, input_ids, logits_processor, stopping_criteria, generation_config, synced_gpus or False, model_kwargs
    )
    references = references_for(reference, generation_config, config, input_ids.shape[0], model)
    amateur = None if contrast is None else _contrasting(call, contrast)
    reason = None if contrast is not None else _reason_for_plain(call)
    if reason is None and method is not None:
        reason = method.reason(call)
    if reason is not None:
        fallback.warn(call, reason)
        result = plain(
            model,
            input_ids,
            logits_processor,
            stopping_criteria,
            generation_config,
            synced_gpus=synced_gpus,
            streamer=streamer,
            **model_kwargs,
        )
        if not call.is_assistant:
            record(_plain_stats(input_ids, result, reason), config.debug)
        return result
    return Decoding(call, streamer, config.settled(), references, amateur, method).run()


def _contrasting(call: Call, contrast: Contrast) -> Amateur:
    """The amateur's part of a call, where both models can be branched."""
    check_contrast(contrast, call.model)
    reason, name = _reason_for_plain(call), "the model"
    amateur = amateur_call(call, contrast) if reason is None else call
    if reason is None:
        reason, name = _reason_for_plain(amateur), "the amateur"
    if reason is not None:
        raise ValueError(f"contrast: contrastive decoding is not possible, because of {name}: {reason}")
    check_positions(amateur)
    return Amateur(amateur, contrast)


def _reason_for_plain(call: Call) -> str | None:
    reason = fallback.reason_for_plain(call, refusal)
    if reason is not None:
        return reason
    text_config = call.text_config
    return probed_reason(call.model, layer_kinds(text_config), position_limit(text_config))


def _plain_stats(input_ids: torch.Tensor, result: Any, reason: str) -> GenerationStats:
    sequences = getattr(result, "sequences", result)
    new = max(0, sequences.shape[1] - input_ids.shape[1]) * input_ids.shape[0]
    return GenerationStats(rows=input_ids.shape[0], new_tokens=new, fallback=reason)
