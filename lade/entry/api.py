"""Ways in that need no patch: `lade.generate`, and a decoding method for transformers' own `custom_generate` hook."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from transformers import PreTrainedTokenizerBase
from transformers.generation import StoppingCriteriaList, StopStringCriteria
from transformers.generation.utils import GenerateOutput

from lade.base.arguments import Streamer, check_streamer, check_tokenizer
from lade.base.shown import invalid
from lade.config.default import default_config
from lade.config.settings import LookaheadConfig, check_config
from lade.engine.method import Method
from lade.entry.augment import check_call, plain_sample
from lade.entry.methods import check_method
from lade.entry.reference import check_reference, reference_in, references_of
from lade.entry.route import lookahead_sample
from lade.facts.vocabulary import readable
from lade.target.contrast import Contrast, check_contrast, check_kind

Generated: TypeAlias = torch.LongTensor | GenerateOutput  # what `model.generate` returns


def decoding_method(
    config: LookaheadConfig | None = None,
    *,
    method: Method | None = None,
    streamer: Streamer | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    reference: Any = None,
    contrast: Contrast | None = None,
) -> Callable[..., Generated]:
    """A decoding method for `model.generate(**inputs, custom_generate=...)`; greedy and sampling only.

    transformers' hook drops `streamer` and `tokenizer` on the way, so what the call needs of them is bound here: give
    the same streamer to `generate` (it puts the prompt) and to this function (it puts the tokens). The hook also
    refuses `stop_strings`; `lade.generate(..., stop_strings=..., tokenizer=...)` takes them.

    Args:
        config: settings, the process-wide ones at the time of the call where `None`.
        method: draft with a model instead (`lade.DraftModel`, ...).
        streamer: receives the generated tokens and `end()`.
        tokenizer: kept for criteria that need it.
        reference: a text that the output may repeat, as token ids, or one per prompt; for mode "auto".
        contrast: decode contrastively, with an amateur beside the model.

    Raises:
        ValueError: config is not a LookaheadConfig, contrast no Contrast, reference no text, or method is given beside
            one of them; later, from the call, where beams or, in the paper's mode, a reference are asked for, where
            the method does not go with the model, or what cannot be contrasted.
    """
    check_config(config)
    if contrast is not None:
        check_kind(contrast)
    check_streamer(streamer)
    check_tokenizer("tokenizer", tokenizer)
    check_method(method, config=config, reference=reference, contrast=contrast)
    references_of(reference)

    def lookahead_decoding(
        model: Any,
        input_ids: torch.Tensor,
        logits_processor: Any = None,
        stopping_criteria: Any = None,
        generation_config: Any = None,
        **model_kwargs: Any,
    ) -> Generated:
        _check_mode(generation_config)
        if method is not None:
            method.check(model)
        model_kwargs.setdefault("tokenizer", tokenizer)
        bound = model_kwargs.pop("streamer", None) or streamer
        return lookahead_sample(
            model,
            input_ids,
            logits_processor,
            stopping_criteria,
            generation_config,
            streamer=bound,
            config=config or default_config(),
            plain=plain_sample(),
            reference=reference,
            contrast=contrast,
            method=method,
            **model_kwargs,
        )

    return lookahead_decoding


def generate(
    model: Any,
    input_ids: torch.Tensor | None = None,
    *,
    config: LookaheadConfig | None = None,
    method: Method | None = None,
    streamer: Streamer | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    reference: Any = None,
    contrast: Contrast | None = None,
    **generate_kwargs: Any,
) -> Generated:
    """`model.generate` with lookahead; nothing in transformers is patched.

    Args:
        model: a transformers causal language model.
        input_ids: [B, P] token ids, left-padded where rows differ in length (give an attention_mask then).
        config: settings, the process-wide ones where `None`.
        method: draft with a model instead (`lade.DraftModel`, `lade.MultiCandidate`, `lade.SelfSpeculative`).
        reference: a text that the output may repeat (a predicted output, the old version of a file), as token ids or a
            list of them per prompt; for mode "auto".
        contrast: decode contrastively, with an amateur beside the model (`lade.Contrast`): another distribution than
            the model's own, in which the drafts change nothing. `LookaheadConfig(budget=1)` drafts nothing: one token
            per forward.
        generate_kwargs: whatever `model.generate` takes for greedy decoding and sampling.

    Returns:
        What `model.generate` returns.

    Raises:
        ValueError: names the argument, its value and what is allowed, before any work.
    """
    check_call(model, config)
    check_method(method, config=config, reference=reference, contrast=contrast)
    if method is not None:
        method.check(model)
    if contrast is not None:
        check_contrast(contrast, model)
    prompts = check_inputs(model, input_ids, generate_kwargs)
    if method is None:  # else there is nothing that could change meanwhile
        config = config or default_config()
        check_reference(reference, config, model, prompts.shape[0])
    reference_in(generate_kwargs.get("generation_config"))
    way = decoding_method(
        config, method=method, streamer=streamer, tokenizer=tokenizer, reference=reference, contrast=contrast
    )
    stop_strings = generate_kwargs.pop("stop_strings", None)
    if stop_strings is not None:
        _check_stop_strings(stop_strings, tokenizer)
        criteria = StoppingCriteriaList(generate_kwargs.pop("stopping_criteria", None) or [])
        criteria.append(StopStringCriteria(stop_strings=stop_strings, tokenizer=tokenizer))
        generate_kwargs["stopping_criteria"] = criteria
    return model.generate(input_ids=input_ids, streamer=streamer, custom_generate=way, **generate_kwargs)


def _check_stop_strings(stop_strings: Any, tokenizer: Any) -> None:
    texts = [stop_strings] if isinstance(stop_strings, str) else stop_strings
    if not isinstance(texts, list | tuple) or not texts or not all(text and isinstance(text, str) for text in texts):
        raise invalid("stop_strings", "a text, a list of texts or None", stop_strings)
    if tokenizer is None:
        raise ValueError("tokenizer=None: stop_strings need the model's tokenizer")


def check_inputs(model: Any, input_ids: Any, kwargs: dict[str, Any]) -> torch.Tensor:
    """The prompts, behind errors about them that name the argument and what is allowed."""
    if "inputs_embeds" in kwargs:
        raise ValueError("inputs_embeds is not supported: allowed are input_ids")
    if not isinstance(input_ids, torch.Tensor) or input_ids.dim() != 2:
        shape = f"shape {tuple(input_ids.shape)}" if isinstance(input_ids, torch.Tensor) else type(input_ids).__name__
        hint = ": a tokenizer's output is given as **inputs" if isinstance(input_ids, Mapping) else ""
        raise ValueError(f"input_ids must be a tensor of shape [rows, tokens], got {shape}{hint}")
    if input_ids.is_floating_point() or input_ids.dtype == torch.bool:
        raise ValueError(f"input_ids of type {input_ids.dtype}: allowed is a tensor of integers")
    if 0 in input_ids.shape:
        raise ValueError(f"input_ids of shape {tuple(input_ids.shape)}: an empty prompt; at least one token is needed")
    config = model.config.get_text_config(decoder=True)
    low, high, size = int(input_ids.min()), int(input_ids.max()), readable(model)
    if low < 0 or high >= size:
        wrong = low if low < 0 else high
        raise ValueError(f"input_ids must hold token ids from 0 to {size - 1}, got {wrong}")
    _check_mask(input_ids, kwargs)
    _check_positions(input_ids, kwargs)
    mask = kwargs.get("attention_mask")
    longest = input_ids.shape[1] if mask is None else int(mask.sum(dim=1).max())
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None and 0 < positions < longest:  # -1 stands for no limit (XLNet)
        raise ValueError(f"input_ids of {longest} tokens: allowed are at most the model's {positions} positions")
    _check_mode(kwargs.get("generation_config"), kwargs)
    return input_ids


def _check_mask(input_ids: torch.Tensor, kwargs: dict[str, Any]) -> None:
    mask = kwargs.get("attention_mask")
    if mask is None:
        return
    expected: tuple[int, ...] = tuple(input_ids.shape)
    if not isinstance(mask, torch.Tensor) or mask.dim() != 2 or mask.shape[0] != expected[0]:
        raise ValueError(f"attention_mask: allowed is a tensor of shape {expected}")
    if kwargs.get("past_key_values") is None and tuple(mask.shape) != expected:
        raise ValueError(f"attention_mask of shape {tuple(mask.shape)}: allowed is {expected}, the shape of input_ids")
    if not bool(mask.any(dim=1).all()):
        raise ValueError("attention_mask has a row without a token: an empty prompt")


def _check_positions(input_ids: torch.Tensor, kwargs: dict[str, Any]) -> None:
    positions = kwargs.get("position_ids")
    if positions is None or kwargs.get("past_key_values") is not None:
        return
    rows, length = input_ids.shape
    if not isinstance(positions, torch.Tensor) or tuple(positions.shape) not in {(rows, length), (1, length)}:
        shape = tuple(positions.shape) if isinstance(positions, torch.Tensor) else type(positions).__name__
        raise ValueError(f"position_ids of {shape}: allowed is {(rows, length)}, the shape of input_ids")


def _check_mode(generation_config: Any, kwargs: dict[str, Any] | None = None) -> None:
    for name, plain in (("num_beams", 1), ("num_beam_groups", 1), ("penalty_alpha", None), ("dola_layers", None)):
        value = (kwargs or {}).get(name, getattr(generation_config, name, plain))
        if value not in (plain, None):
            raise ValueError(f"{name}={value!r}: lookahead decodes greedily or samples; allowed is {plain}")
