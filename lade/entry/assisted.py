"""transformers' own assisted generation and prompt lookup, with the statistics of lade's methods.

`model.generate` runs them, and hooks count what they do. Both decode one text at a time.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from lade.base.arguments import Streamer, check_integer, check_model, check_streamer, check_tokenizer
from lade.base.shown import invalid
from lade.base.wrappers import unwrapped
from lade.core.stats import GenerationStats, record
from lade.entry.api import Generated
from lade.entry.inputs import check_inputs
from lade.measure.forwards import ForwardCounter, Forwards
from lade.target.contrast import vocabulary_size

ASSISTANT, PROMPT_LOOKUP = "assistant", "prompt_lookup"  # sources of drafts in the statistics
REFUSED = ("custom_generate", "assistant_model")  # arguments of `model.generate` that would choose another method


def assisted_generate(
    model: Any,
    input_ids: torch.Tensor,
    *,
    assistant: Any,
    draft_tokens: int | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    assistant_tokenizer: PreTrainedTokenizerBase | None = None,
    streamer: Streamer | None = None,
    **generate_kwargs: Any,
) -> Generated:
    """transformers' assisted generation (`assistant_model=`); fills `lade.last_stats()`.

    If the assistant has another tokenizer, transformers re-encodes the text between the two (greedy), or keeps the
    tokens that both have and cuts the assistant's output layer to them permanently (sampling).

    Args:
        model: a transformers causal language model.
        input_ids: [1, P] token ids.
        assistant: the draft model.
        draft_tokens: tokens drafted per step; `None` leaves it to the assistant's generation config.
        tokenizer: the model's; given with `assistant_tokenizer` where the two tokenizers differ.
        assistant_tokenizer: the assistant's.
        streamer: receives the tokens, several at once.
        generate_kwargs: the other arguments of `model.generate` for assisted generation.

    Returns:
        What `model.generate` returns.

    Raises:
        ValueError: an argument is wrong; raised before any forward.
    """
    check_model("model", model)
    check_model("assistant", assistant)
    if unwrapped(assistant) is unwrapped(model):
        raise invalid("assistant", "another model than the one that it drafts for", assistant)
    _check_tokenizers(tokenizer, assistant_tokenizer)
    own, theirs = vocabulary_size(model), vocabulary_size(assistant)
    if tokenizer is None and own != theirs:
        raise ValueError(
            f"assistant must have the model's vocabulary of {own} tokens where no tokenizers are given, got {theirs}"
        )
    if draft_tokens is not None:
        _check_count("draft_tokens", draft_tokens)
    if generate_kwargs.get("guidance_scale") not in (None, 1):  # its processor would run the model for both
        raise invalid("guidance_scale", "None or 1 with an assistant", generate_kwargs["guidance_scale"])
    arguments = {"assistant_model": assistant}
    if tokenizer is not None:
        arguments |= {"tokenizer": tokenizer, "assistant_tokenizer": assistant_tokenizer}
    with _drafting(assistant, draft_tokens):
        return _counted(ASSISTANT, model, (assistant,), input_ids, streamer, arguments, generate_kwargs)


def prompt_lookup_generate(
    model: Any,
    input_ids: torch.Tensor,
    *,
    draft_tokens: int = 10,
    ngram: int = 2,
    streamer: Streamer | None = None,
    **generate_kwargs: Any,
) -> Generated:
    """transformers' prompt lookup: drafts what followed the last tokens earlier in the text.

    Fills `lade.last_stats()`; the time for drafting is part of `host_seconds`.

    Args:
        model: a transformers causal language model.
        input_ids: [1, P] token ids.
        draft_tokens: the most tokens drafted per step.
        ngram: the most tokens that are looked up.
        streamer: receives the tokens, several at once.
        generate_kwargs: the other arguments of `model.generate` for prompt lookup.

    Returns:
        What `model.generate` returns.

    Raises:
        ValueError: an argument is wrong; raised before any forward.
    """
    check_model("model", model)
    for name, value in (("draft_tokens", draft_tokens), ("ngram", ngram)):
        _check_count(name, value)
    arguments = {"prompt_lookup_num_tokens": draft_tokens, "max_matching_ngram_size": ngram}
    return _counted(PROMPT_LOOKUP, model, (), input_ids, streamer, arguments, generate_kwargs)


class StepCounter:
    """A streamer that counts the tokens of each step and passes them on to another streamer.

    Attributes:
        counts: tells `lade.entry.route.left_call` that the statistics of the call are recorded here.
    """

    counts = True

    def __init__(self, streamer: Streamer | None) -> None:
        self._streamer = streamer
        self._prompt_seen = False
        self.emitted: list[int] = []

    def put(self, value: torch.Tensor) -> None:
        if self._prompt_seen:
            self.emitted.append(value.numel())
        self._prompt_seen = True
        if self._streamer is not None:
            self._streamer.put(value)

    def end(self) -> None:
        if self._streamer is not None:
            self._streamer.end()


def _counted(
    source: str,
    model: Any,
    drafters: tuple[Any, ...],
    input_ids: torch.Tensor,
    streamer: Streamer | None,
    arguments: dict[str, Any],
    generate_kwargs: dict[str, Any],
) -> Generated:
    check_streamer(streamer)
    for name in REFUSED:
        if generate_kwargs.get(name) is not None:
            raise invalid(name, "None, as the method is chosen by the function", generate_kwargs[name])
    rows = check_inputs(model, input_ids, generate_kwargs)
    if rows != 1:
        raise ValueError(f"input_ids must have one row, as transformers drafts for one text, got {rows}")
    cache = generate_kwargs.get("past_key_values")
    if cache is not None and cache.get_seq_length():  # the whole prompt would be computed again
        raise ValueError(f"past_key_values must be an empty cache, got one of {cache.get_seq_length()} tokens")
    steps = StepCounter(streamer)
    with ForwardCounter(unwrapped(model), *map(unwrapped, drafters), one_cache=True) as counter:
        result = model.generate(input_ids=input_ids, streamer=steps, **arguments, **generate_kwargs)
    seen = counter.result()
    # A forward holds the tokens that are not cached (the prompt, later one token), then the draft.
    drafted = [seen.per_forward[0] - input_ids.shape[1], *(tokens - 1 for tokens in seen.per_forward[1:])]
    record(stats_of(source, seen, drafted, steps.emitted))
    return result


def stats_of(source: str, seen: Forwards, drafted: Sequence[int], emitted: Sequence[int]) -> GenerationStats:
    """Statistics of a method that drafts one chain per step.

    The prefill is not a step, but it verifies the first draft, which counts as proposed, verified and accepted.

    Args:
        source: name of the drafts in the statistics.
        seen: the forwards of the call.
        drafted: drafted tokens in each forward, the prefill first.
        emitted: tokens that each forward added to the text, the prefill first.
    """
    accepted = [tokens - 1 for tokens in emitted]
    verified = [min(right + 1, tokens) for right, tokens in zip(accepted, drafted, strict=True)]
    return GenerationStats(
        rows=1,
        new_tokens=sum(emitted),
        steps=seen.steps,
        forward_tokens=seen.tokens,
        proposed={source: sum(drafted)},
        verified={source: sum(verified)},
        accepted={source: sum(accepted)},
        verified_by_depth=_by_depth(verified),
        accepted_by_depth=_by_depth(accepted),
        accepted_lengths=dict(sorted(Counter(emitted).items())),
        widths=seen.widths,
        prefill_seconds=seen.prefill_seconds,
        model_seconds=seen.model_seconds,
        host_seconds=seen.host_seconds,
        draft_seconds=seen.other_seconds,
    )


def _by_depth(chains: Sequence[int]) -> dict[int, int]:
    """Depth -> number of chains that reach it."""
    return {depth: sum(length >= depth for length in chains) for depth in range(1, max(chains, default=0) + 1)}


@contextlib.contextmanager
def _drafting(assistant: Any, tokens: int | None) -> Iterator[None]:
    """Inside, the assistant's generation config asks for a fixed number of tokens; it is restored afterwards."""
    if tokens is None:
        yield
        return
    config = unwrapped(assistant).generation_config
    fixed = {
        "num_assistant_tokens": tokens,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": 0.0,
    }
    before = {name: getattr(config, name, None) for name in fixed}
    try:
        for name, value in fixed.items():
            setattr(config, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(config, name, value)


def _check_tokenizers(tokenizer: Any, assistant_tokenizer: Any) -> None:
    check_tokenizer("tokenizer", tokenizer)
    check_tokenizer("assistant_tokenizer", assistant_tokenizer)
    if (tokenizer is None) != (assistant_tokenizer is None):
        missing = "tokenizer" if tokenizer is None else "assistant_tokenizer"
        raise ValueError(f"tokenizer and assistant_tokenizer must be given together, got no {missing}")


def _check_count(name: str, value: Any) -> None:
    check_integer(name, value, "an integer of at least 1", lambda number: number >= 1)
