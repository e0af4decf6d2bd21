"""The route of a call, in place of transformers' `_sample`: lookahead, or plain decoding with a reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import LogitsProcessorList, StoppingCriteriaList

from lade.core.stats import GenerationStats, record
from lade.distributed.processes import processes
from lade.engine.decoding import Amateur, Decoding
from lade.engine.emission_factory import chooses_ahead, eos_tokens
from lade.entry import fallback
from lade.entry.amateur import amateur_call, check_positions
from lade.entry.options import Options
from lade.entry.reference import References, references_for
from lade.facts.positions import position_limit
from lade.models.families import refusal
from lade.target.call import Call
from lade.target.contrast import Contrast
from lade.target.masks import layer_kinds
from lade.target.probe import probed_reason


def route_call(
    model: Any,
    input_ids: torch.Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: Any,
    synced_gpus: bool = False,
    streamer: Any = None,
    *,
    options: Options,
    plain: Callable[..., Any],
    **model_kwargs: Any,
) -> Any:
    """Decode with lookahead, or plainly with one `FallbackWarning` where that is not possible.

    A contrastive call never falls back, since plain decoding has another distribution. Arguments that are not listed
    are those of transformers' `_sample`.

    Args:
        options: checked against this model.
        plain: transformers' own `_sample`.

    Returns:
        [B, P + new] token ids, or a `GenerateDecoderOnlyOutput`, as plain decoding does.

    Raises:
        ValueError: the generation config's entry `lade` or the number of references is wrong, or this call cannot be
            contrastive; raised before any forward.
        RankError: another process of the run has died, stalls or disagrees.
    """
    arguments = model, input_ids, logits_processor, stopping_criteria, generation_config
    call = Call(*arguments, synced_gpus or False, model_kwargs)
    references = _references(call, options)
    amateur = None if options.contrast is None else _contrasting(call, options.contrast)
    settings = options.config.settled()
    splits = amateur is None and options.method is None and chooses_ahead(call)
    draws = fallback.may_draw(call, streamer)
    with processes(call, settings, splits, draws) as shared:
        reason = None if amateur is not None else fallback.gradient_reason(call) or reason_for_plain(call)
        if reason is None and options.method is not None:
            reason = options.method.reason(call)
        if reason is None and amateur is None:
            reason = fallback.streamer_reason(call, streamer)
        reason = shared.common_reason(reason)  # a streamer may be on one rank alone
        if reason is None:
            return Decoding(call, streamer, settings, references, amateur, options.method, shared).run()
        fallback.warn(call, reason)
        result = plain(*arguments, synced_gpus=synced_gpus, streamer=streamer, **model_kwargs)
        if not call.is_assistant:
            record(_plain_stats(call, result, reason), options.config.debug)
        return result


def left_call(
    model: Any,
    input_ids: torch.Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: Any,
    *,
    options: Options,
    plain: Callable[..., Any],
    **others: Any,
) -> Any:
    """Decode by transformers' own beam search or assisted generation, and say in the statistics that it did."""
    arguments = model, input_ids, logits_processor, stopping_criteria, generation_config
    result = plain(*arguments, **others)
    if not getattr(others.get("streamer"), "counts", False):
        method = plain.__name__.strip("_").replace("_", " ")
        stats = _plain_stats(Call(*arguments, False, {}), result, f"{method} is left to transformers")
        record(stats, options.config.debug)
    return result


def _references(call: Call, options: Options) -> References | None:
    """One reference per row; the samples of a prompt share one."""
    samples = getattr(call.generation_config, "num_return_sequences", None) or 1
    prompts = call.input_ids.shape[0] // samples
    texts = references_for(options.references, call.generation_config, options.config, call.model, prompts)
    return None if texts is None else [text for text in texts for _ in range(samples)]


def _contrasting(call: Call, contrast: Contrast) -> Amateur:
    """The amateur's part of a call; ValueError where one of the models cannot decode draft trees."""
    reason, name = reason_for_plain(call), "the model"
    amateur = amateur_call(call, contrast) if reason is None else call
    if reason is None:
        reason, name = reason_for_plain(amateur), "the amateur"
    if reason is not None:
        raise ValueError(f"contrast must be None for this call, because of {name}: {reason}")
    check_positions(amateur)
    return Amateur(amateur, contrast)


def reason_for_plain(call: Call, rows: int | None = None, fuse: bool = True) -> str | None:
    """Why a call must decode plainly, or `None`.

    Args:
        rows: the most sequences of a forward; those of the call if not given.
        fuse: as of `lade.target.probe.probed_reason`.
    """
    reason = fallback.reason_for_plain(call, refusal, call.input_ids.shape[0] if rows is None else rows)
    if reason is not None:
        return reason
    text_config = call.text_config
    kinds, limit = layer_kinds(text_config), position_limit(text_config)
    return probed_reason(call.model, kinds, limit, fuse) or fallback.axes_reason(call)


def _plain_stats(call: Call, result: Any, reason: str) -> GenerationStats:
    width = call.input_ids.shape[1]
    ends = eos_tokens(call.criteria)
    texts: list[list[int]] = getattr(result, "sequences", result)[:, width:].tolist()
    new = sum(_length(text, ends) for text in texts)
    return GenerationStats(rows=len(texts), new_tokens=new, fallback=reason)


def _length(text: Sequence[int], ends: frozenset[int]) -> int:
    """The tokens of a text up to its first end token, behind which is padding."""
    return next((length for length, token in enumerate(text, 1) if token in ends), len(text))
