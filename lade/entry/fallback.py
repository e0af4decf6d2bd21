"""Reasons to fall back to plain decoding: what a forward of a draft tree cannot handle. The first reason is reported.

All of it is decided before any forward, from configurations and arguments; the self-probe (`lade.target.probe`) finds
the rest.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import torch
from transformers.generation import MaxTimeCriteria

from lade.engine.purity import ROW_PURE, ROW_PURE_CRITERIA, is_stock
from lade.entry.cachereason import cache_reason
from lade.facts import temperature
from lade.facts.positions import rope_switches
from lade.facts.precision import is_offloaded, padding_works
from lade.facts.sharding import is_sharded, tensor_parallel
from lade.target.attention import STOCK
from lade.target.call import Call, generated_length, longest_text, tokens_beside
from lade.target.masks import layer_kinds
from lade.target.nextinputs import beside_text, next_inputs, one_position_will_do
from lade.target.patches import overridden

SAMPLING = ("cpu", "cuda")


class FallbackWarning(UserWarning):
    """lade falls back to plain decoding with transformers' own method; the message gives the reason."""


_warned_assistants: WeakSet[Any] = WeakSet()


def warn(call: Call, reason: str) -> None:
    """Warn once per call; for an assistant, which is called once per draft, once per model."""
    if call.is_assistant:
        if call.model in _warned_assistants:
            return
        _warned_assistants.add(call.model)
    warnings.warn(f"lade decodes plainly: {reason}", FallbackWarning, stacklevel=4)


def reason_for_plain(call: Call, refusal: Callable[[Any, int], str | None], rows: int) -> str | None:
    """The first reason why this call must decode plainly, or `None`.

    Args:
        refusal: model, rows -> why its family cannot decode draft trees, or `None`.
        rows: the most sequences of a forward.
    """
    checks: tuple[Callable[[Call], str | None], ...] = (
        _mode,
        _processes,
        _sampling,
        _loop,
        lambda call: refusal(call.model, rows),
        _attention,
        cache_reason,
        _inputs,
        _rope,
        lambda call: _temperature(call, rows),
        _batch,
    )
    return next((reason for check in checks if (reason := check(call))), None)


def _mode(call: Call) -> str | None:
    config = call.generation_config
    reasons = {
        "the model is an encoder-decoder": call.model.config.is_encoder_decoder,
        "the model is in training mode (call model.eval())": call.model.training,
        "the model is offloaded": is_offloaded(call.model),
        "synced_gpus is set": call.synced_gpus,
        "use_cache=False": not call.model_kwargs.get("use_cache", True) or not config.use_cache,
        "output_attentions is set": config.output_attentions,
        "output_hidden_states is set": config.output_hidden_states,
        "the model is an assistant of another one": call.is_assistant,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _processes(call: Call) -> str | None:
    """Processes that share a model need equal drafts: `lade.distributed` knows those of tensor parallelism."""
    distributed = torch.distributed
    alone = not (distributed.is_available() and distributed.is_initialized())
    size = tensor_parallel(call.model)
    if size > 1:
        world = 1 if alone else distributed.get_world_size()
        return None if size == world else f"the model is sharded over {size} processes (tp_plan) of {world}"
    if getattr(call.model, "_device_mesh", None) is not None:
        return "the model is spread over several processes"
    if not alone and any(map(is_sharded, call.model.parameters())):
        return "the model's weights are spread over several processes"
    return None


def _sampling(call: Call) -> str | None:
    """The generators of other devices (MPS) may not draw as lookahead assumes."""
    device = call.input_ids.device.type
    if call.generation_config.do_sample and device not in SAMPLING:
        return f"sampling on a device of type {device!r} (its draws are known on {' and '.join(SAMPLING)})"
    return None


def gradient_reason(call: Call) -> str | None:
    """Of the thread that decodes: draft trees are computed without gradients."""
    if torch.is_grad_enabled() and any(parameter.requires_grad for parameter in call.model.parameters()):
        return "gradients are computed (decode under torch.no_grad())"
    return None


def may_draw(call: Call, streamer: Any) -> bool:
    """Whether a user's streamer may draw random numbers between those of the samples."""
    return bool(call.generation_config.do_sample) and not is_stock(streamer)


def streamer_reason(call: Call, streamer: Any) -> str | None:
    """Between which tokens of a batch a streamer draws, depends on how its rows advance."""
    if call.input_ids.shape[0] > 1 and may_draw(call, streamer):
        return f"sampling in a batch with a streamer of your own ({type(streamer).__name__}), which may draw too"
    return None


def _loop(call: Call) -> str | None:
    """Overridden methods that plain decoding calls once per token, and lookahead once per step or never."""
    found = overridden(call.model)
    return None if found is None else f"the model's own {found} may count on one call per token"


def _attention(call: Call) -> str | None:
    implementation = call.text_config._attn_implementation
    if implementation != "eager" and implementation not in STOCK:
        return f"attention implementation {implementation!r} (drafts need one of eager, {', '.join(STOCK)})"
    try:
        layer_kinds(call.text_config)
    except ValueError as error:
        return str(error)
    return None


def _inputs(call: Call) -> str | None:
    embeds, width = call.model_kwargs.get("inputs_embeds"), call.input_ids.shape[-1]
    if call.input_ids.dim() != 2 or (embeds is None and width == 0):
        return f"input_ids of shape {tuple(call.input_ids.shape)}"
    if embeds is not None and width not in (0, embeds.shape[1]):
        return f"inputs_embeds of {embeds.shape[1]} tokens beside input_ids of {width}"
    mask = call.model_kwargs.get("attention_mask")
    if mask is not None and (mask.dim() != 2 or not bool(mask[:, -1].all())):
        return "an attention_mask that does not end in ones"
    if mask is not None and not padding_works(call.model) and not bool(mask.all()):
        return "padding in float64 with eager attention, which transformers turns into NaN"
    owner = getattr(call.model.prepare_inputs_for_generation, "__self__", call.model)
    if getattr(getattr(owner, "active_peft_config", None), "is_prompt_learning", False):
        return "PEFT prompt learning"
    return _behind_prompt(call)


def _behind_prompt(call: Call) -> str | None:
    """Images and the like are read with the prompt; what forwards get after it, drafts must carry."""
    try:
        inputs = next_inputs(call.model, call.input_ids, call.model_kwargs)
    except Exception as failure:  # noqa: BLE001 - a model's code may raise anything; plain decoding must still run
        return f"the inputs behind the prompt failed with {type(failure).__name__}: {failure}"
    if inputs.unknown:
        return f"model inputs that drafts cannot carry: {', '.join(inputs.unknown)}"
    if inputs.positions is None:
        return _without_positions(call)
    if inputs.of_roots(call.input_ids.shape[0]) is None:
        return "a prompt whose end has unequal positions on the axes of its rotary embedding"
    return None


def axes_reason(call: Call) -> str | None:
    """Why a model that has passed the self-probe cannot take positions of one axis, as drafts have them, or `None`."""
    positions = next_inputs(call.model, call.input_ids, call.model_kwargs).positions
    if positions is None or positions.dim() == 2:
        return None
    try:
        stands = one_position_will_do(call.model, len(positions))
    except Exception as failure:  # noqa: BLE001 - as above
        return f"positions on several axes failed with {type(failure).__name__}: {failure}"
    return None if stands else f"positions on {len(positions)} axes, for which one position does not stand"


def _without_positions(call: Call) -> str | None:
    """A model that drops them counts the tokens of the cache, padding included; with images, only it knows what."""
    mask = call.model_kwargs.get("attention_mask")
    dropped = call.model_kwargs.get("position_ids") is not None
    if dropped and (beside_text(call.model_kwargs) or not (mask is None or bool(mask.all()))):
        return "positions that the model finds by itself, behind padding or more than text"
    return None


def _rope(call: Call) -> str | None:
    end = longest_text(call)
    for switch in rope_switches(call.text_config):
        if end > switch:
            return f"the text may cross the switch of its rotary embedding at {switch:g} positions"
    return None


def _temperature(call: Call, rows: int) -> str | None:
    """Rows accept unequal numbers of tokens, so one forward holds tokens of different positions."""
    width = call.input_ids.shape[1] if rows == call.input_ids.shape[0] else 0  # else others may be at their start
    cache = call.model_kwargs.get("past_key_values")
    cached = 0 if cache is None else int(cache.get_seq_length())
    longest = generated_length(call) + max(cached, tokens_beside(call))
    if rows > 1 and temperature.changes(call.text_config, width, longest - 2):
        return "the attention temperature of a batch may change along the text"
    return None


def _batch(call: Call) -> str | None:
    if call.input_ids.shape[0] == 1:
        return None
    for processor in call.processors:
        if type(processor) not in ROW_PURE:
            return f"{type(processor).__name__} is not known to treat the rows of a batch one by one"
    for criterion in call.criteria:
        if type(criterion) not in ROW_PURE_CRITERIA:
            return f"{type(criterion).__name__} is not known to treat the rows of a batch one by one"
        if isinstance(criterion, MaxTimeCriteria):
            return "max_time in a batch, whose rows must end together"
    names = {type(criterion).__name__ for criterion in call.criteria}
    if "StopStringCriteria" in names and "EosTokenCriteria" not in names:
        return "rows of a batch that stop at strings without an EOS token"
    return None
