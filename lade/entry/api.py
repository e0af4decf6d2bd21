"""Ways in without a patch: `lade.generate`, and a decoding method for the `custom_generate` hook of transformers.

`generate` calls `model.generate`, which prepares the call and hands it to our decoding method (`lade.entry.route`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from transformers import PreTrainedTokenizerBase
from transformers.generation.utils import GenerateOutput

from lade.base.arguments import Streamer, check_model, check_streamer, check_tokenizer
from lade.config.settings import LookaheadConfig
from lade.engine.method import Method
from lade.entry.augment import original_sample
from lade.entry.inputs import check_inputs, check_strategy
from lade.entry.options import Arguments, Options
from lade.entry.reference import references_for
from lade.entry.route import route_call
from lade.entry.stopstrings import with_stop_strings
from lade.target.contrast import Contrast

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
    """A decoding method for `model.generate(**inputs, custom_generate=...)`; greedy decoding and sampling only.

    The hook of transformers does not pass `streamer` and `tokenizer` on, so they are bound here: give the same streamer
    to `generate` (it puts the prompt) and to this function (it puts the tokens). The hook also refuses `stop_strings`;
    `lade.generate(..., stop_strings=..., tokenizer=...)` takes them.

    Args:
        config: settings; `None` for the process-wide ones at the time of the call.
        method: draft with a model instead (`lade.DraftModel`, ...).
        streamer: receives the generated tokens and `end()`.
        tokenizer: for criteria that need it.
        reference: a text that the output may repeat, as token ids, or one per prompt; for mode "auto".
        contrast: decode contrastively, with an amateur model.

    Returns:
        A function for `custom_generate`; it returns what `model.generate` returns.

    Raises:
        ValueError: an argument has the wrong type, or `method` is given with one of the others. From the call: beams
            are asked for, a reference in the paper's mode, or an argument does not fit the model.
    """
    return _custom_generate(Arguments(config, method, reference, contrast).options, streamer, tokenizer)


def _custom_generate(
    options_for: Callable[[Any], Options], streamer: Streamer | None, tokenizer: Any
) -> Callable[..., Generated]:
    """The function that transformers' hook calls with the arguments of a decoding method.

    Args:
        options_for: model -> the call's options.
    """
    check_streamer(streamer)
    check_tokenizer("tokenizer", tokenizer)

    def custom_generate(
        model: Any,
        input_ids: torch.Tensor,
        logits_processor: Any = None,
        stopping_criteria: Any = None,
        generation_config: Any = None,
        **model_kwargs: Any,
    ) -> Generated:
        check_strategy(generation_config)  # merged by now with the model's own generation config
        model_kwargs.setdefault("tokenizer", tokenizer)
        bound = model_kwargs.pop("streamer", None) or streamer
        return route_call(
            model,
            input_ids,
            logits_processor,
            stopping_criteria,
            generation_config,
            streamer=bound,
            options=options_for(model),
            plain=original_sample(),
            **model_kwargs,
        )

    return custom_generate


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
    """`model.generate` with lookahead, without patching transformers.

    Args:
        model: a transformers causal language model.
        input_ids: [B, P] token ids; rows of unequal length are left-padded and need an attention_mask.
        config: settings; `None` for the process-wide ones.
        method: draft with a model instead (`lade.DraftModel`, `lade.MultiCandidate`, `lade.SelfSpeculative`).
        streamer: receives the prompt, the generated tokens and `end()`.
        tokenizer: the model's; needed with `stop_strings`.
        reference: a text that the output may repeat (a predicted output, the old version of a file), as token ids or a
            list of them per prompt; for mode "auto".
        contrast: decode contrastively, with an amateur model (`lade.Contrast`). This changes the distribution; drafts
            do not. `LookaheadConfig(budget=1)` drafts nothing: one token per forward.
        generate_kwargs: the other arguments of `model.generate` for greedy decoding and sampling.

    Returns:
        What `model.generate` returns.

    Raises:
        ValueError: an argument is wrong; raised before any forward.
    """
    check_model("model", model)
    options = Arguments(config, method, reference, contrast).options(model)
    prompts = check_inputs(model, input_ids, generate_kwargs)
    given = generate_kwargs.get("generation_config")
    references = references_for(options.references, given, options.config, model, prompts)
    options = replace(options, references=references)
    custom_generate = _custom_generate(lambda _: options, streamer, tokenizer)
    generate_kwargs = with_stop_strings(generate_kwargs, tokenizer)
    return model.generate(input_ids=input_ids, streamer=streamer, custom_generate=custom_generate, **generate_kwargs)
