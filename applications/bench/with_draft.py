"""Factories of the methods that need a second model, skip sub-layers, or contrast two models.

Knows nothing of prompts, timing or reports.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import lade
from lade.applications.bench.companion import Companion
from lade.applications.bench.method import Decode, MethodOptions
from lade.base.shown import invalid
from lade.target.skipset import SkipSet, skip_set

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from lade.engine.method import Method

GAMMA = 5  # tokens drafted per step: the default of lade.DraftModel
LAYERS = re.compile(r"([\d-]*)/([\d-]*)")  # 1-2/3: the attention of layers 1 and 2, the MLP of layer 3


def draft(options: MethodOptions) -> Decode:
    lengths = lengths_of(options, tokens=GAMMA, adapt="fixed", threshold=0.4)
    return _drafting(lambda companion: lade.DraftModel(companion.model, **lengths))


def multi_candidate(options: MethodOptions) -> Decode:
    widths = widths_of(options)
    return _drafting(
        lambda companion: lade.MultiCandidate(companion.model, widths=widths, replacement=bool(options.replacement))
    )


def self_speculative(options: MethodOptions) -> Decode:
    method = skipping(options)

    def decode(model: PreTrainedModel, **arguments: Any) -> Tensor:
        with lade.lookahead(model, method=method):
            return model.generate(**arguments)

    return decode


def assisted(options: MethodOptions) -> Decode:
    """transformers' assisted generation, with both tokenizers if the vocabularies differ in size."""
    from lade.target.contrast import vocabulary_size

    tokens = lengths_of(options, tokens=GAMMA, adapt="fixed", threshold=0.4)["tokens"]

    def decode(model: PreTrainedModel, draft: Companion | None = None, **arguments: Any) -> Tensor:
        assert draft is not None
        assistant, tokenizers = draft.model, {}
        if vocabulary_size(model) != vocabulary_size(assistant):
            tokenizers = {"tokenizer": draft.target_tokenizer, "assistant_tokenizer": draft.tokenizer}
            assistant = draft.copied() if arguments["do_sample"] else assistant  # sampling changes its output layer
        given = {"assistant": assistant, "draft_tokens": tokens} | tokenizers
        sequences: Tensor = lade.assisted_generate(model, **given, **arguments)
        return sequences

    return decode


def contrastive(configure: Callable[[MethodOptions], lade.LookaheadConfig]) -> Callable[[MethodOptions], Decode]:
    """Contrastive decoding with the draft model as the amateur, and with these settings."""

    def factory(options: MethodOptions) -> Decode:
        config = configure(options)

        def decode(model: PreTrainedModel, draft: Companion | None = None, **arguments: Any) -> Tensor:
            assert draft is not None
            with lade.lookahead(model, config, contrast=contrast_of(options, draft)):
                return model.generate(**arguments)

        return decode

    return factory


def _drafting(make: Callable[[Companion], Method]) -> Decode:
    def decode(model: PreTrainedModel, draft: Companion | None = None, **arguments: Any) -> Tensor:
        assert draft is not None
        with lade.lookahead(model, method=make(draft)):
            return model.generate(**arguments)

    return decode


# Options


def lengths_of(options: MethodOptions, **own: Any) -> dict[str, Any]:
    """The draft length: the given options, else the method's defaults. ValueError names an invalid one."""
    from lade.entry.methods import check_length

    asked = {"tokens": options.draft_tokens, "adapt": options.draft_adapt, "threshold": options.threshold}
    lengths = own | {name: value for name, value in asked.items() if value is not None}
    check_length(**lengths)
    return lengths


def widths_of(options: MethodOptions) -> tuple[int, ...]:
    """`4-2-2` as (4, 2, 2). ValueError if it is not a valid tree."""
    from lade.entry.methods import check_widths

    parts = options.widths.split("-")
    if not all(part.isdecimal() for part in parts):
        raise invalid("widths", "numbers separated by -, such as 4-2-2", options.widths)
    widths = tuple(map(int, parts))
    check_widths(widths)
    return widths


def skipping(options: MethodOptions) -> lade.SelfSpeculative:
    lengths = lengths_of(options, tokens=8, adapt="confidence", threshold=0.6)
    return lade.SelfSpeculative(layers_of(options.skip or ""), **lengths)


def layers_of(skip: str) -> SkipSet:
    """The layers named by the option, or those in the file of that name."""
    named = LAYERS.fullmatch(skip)
    return skip_set(skip) if named is None else skip_set(tuple(_numbers(part) for part in named.groups()))


def _numbers(part: str) -> Sequence[int]:
    return tuple(int(number) for number in part.split("-") if number)


def contrast_of(options: MethodOptions, draft: Companion) -> lade.Contrast:
    return lade.Contrast(
        draft.model,
        weight=options.contrast_weight,
        temperature=options.amateur_temperature,
        alpha=options.contrast_alpha,
        vocabulary=options.vocabulary,
    )


# Reasons why a method cannot run


def no_pair(model: PreTrainedModel, options: MethodOptions, draft: Companion | None) -> str | None:
    assert draft is not None
    return _mismatch(draft) or _refused(lambda: lade.DraftModel(draft.model).check(model))


def no_assistant(model: PreTrainedModel, options: MethodOptions, draft: Companion | None) -> str | None:
    """transformers treats two vocabularies of the same size as equal."""
    from lade.target.contrast import vocabulary_size

    assert draft is not None
    return _mismatch(draft) if vocabulary_size(model) == vocabulary_size(draft.model) else None


def no_contrast(model: PreTrainedModel, options: MethodOptions, draft: Companion | None) -> str | None:
    """Contrastive decoding has no fallback to plain decoding, so both models are probed first."""
    from lade.target.contrast import check_contrast

    assert draft is not None
    return (
        _mismatch(draft)
        or _refused(lambda: check_contrast(contrast_of(options, draft), model))
        or _unbranchable("the model", model)
        or _unbranchable("the amateur", draft.model)
    )


def _unbranchable(name: str, model: PreTrainedModel) -> str | None:
    from lade.facts.positions import position_limit
    from lade.models.families import refusal
    from lade.target.masks import layer_kinds
    from lade.target.probe import probed_reason

    config = model.config.get_text_config(decoder=True)
    reason = refusal(model) or probed_reason(model, layer_kinds(config), position_limit(config))
    return None if reason is None else f"contrastive decoding is not possible because of {name}: {reason}"


def no_such_layers(model: PreTrainedModel, options: MethodOptions, draft: Companion | None) -> str | None:
    return _refused(lambda: skipping(options).check(model))


def _mismatch(draft: Companion) -> str | None:
    return None if draft.mismatch is None else f"the draft model has {draft.mismatch}"


def _refused(check: Callable[[], object]) -> str | None:
    try:
        check()
    except ValueError as error:
        return str(error)
    return None
