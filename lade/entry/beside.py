"""Requests of an engine whose prompts have images or other inputs beside their text.

The model's own forward reads such a prompt at once, unless its beginning up to the last image is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lade.engine.protocols import PrefixStore
from lade.static.lasting import LastingTarget, readable
from lade.target.call import Call, prefill_arguments
from lade.target.imageprefixes import image_prefixes
from lade.target.model import HFTarget
from lade.target.nextinputs import NextInputs, beside_text, next_inputs
from lade.target.outputs import Outputs
from lade.target.prefixes import PrefixCache


class NoPrefixes:
    """Keeps nothing, and has nothing (`lade.engine.protocols.PrefixStore`)."""

    def restore(self, slot: int, prompt: Sequence[int], tenant: str | None) -> int:
        return 0

    def keep(self, slot: int, text: Sequence[int], tenant: str | None) -> None:
        pass


def prefixes_of(call: Call, kept: PrefixCache | None, target: HFTarget | LastingTarget) -> PrefixStore:
    """Where the beginning of a prompt that is read at once may lie, and goes; nowhere without known images."""
    found = None if kept is None else image_prefixes(kept, call)
    return NoPrefixes() if found is None else readable(found, target)


def is_read_at_once(call: Call, cache: Any, prompt_logprobs: bool) -> bool:
    """Whether the prompt of a request is more than text, or its positions are not those of its tokens.

    Args:
        cache: the caller's own.

    Raises:
        ValueError: it is, and something was asked for that only prompts of text have; or there is a cache, and only the
            model knows the positions behind it: of its last call, which may be any other one.
    """
    inputs = next_inputs(call.model, call.input_ids, call.model_kwargs)
    more = bool(beside_text(call.model_kwargs))
    on_axes = inputs.positions is not None and inputs.positions.dim() > 2
    if cache is not None and (more or on_axes):
        raise ValueError("past_key_values must be None for images, and for positions on several axes, got a cache")
    if not more:
        return cache is None and _shifts(call, inputs)
    mask = call.model_kwargs.get("attention_mask")
    if mask is not None and not bool(mask.all()):
        raise ValueError("attention_mask must be ones where a prompt is more than text, got padding")
    if prompt_logprobs:
        raise ValueError("prompt_logprobs must be False where a prompt is more than text, got True")
    return True


def _shifts(call: Call, inputs: NextInputs) -> bool:
    """Whether the next token has another position than the number of tokens before it."""
    roots, mask = inputs.of_roots(1), call.model_kwargs.get("attention_mask")
    tokens = call.input_ids.shape[1] if mask is None else int(mask.sum())
    return roots not in (None, [tokens])


def prefill_of(call: Call, target: HFTarget | LastingTarget) -> Callable[[], Callable[[int], Outputs]]:
    """As of `Request.prefill`, for the prompt of a call."""
    input_ids, generation_config, inputs, most = prefill_arguments(call)

    def read() -> Callable[[int], Outputs]:
        logits = target.read(input_ids, generation_config, inputs)
        return lambda slot: target.place(logits, input_ids, inputs, most, [slot])

    return read
