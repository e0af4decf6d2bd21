"""What `lade.Engine.submit` is given, and the request that it makes.

transformers prepares a request as it prepares a call of `generate`: processors, stopping criteria and settings are
those that plain decoding would use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedTokenizerBase

from lade.base.arguments import Streamer, check_integer, check_streamer, check_switch, check_tokenizer
from lade.base.shown import invalid
from lade.config.settings import LookaheadConfig
from lade.core.logprobs import Logprobs
from lade.core.noise import Noise
from lade.core.request import Request
from lade.engine.decoding import inverse_temperature_of, requests_of
from lade.engine.emission_factory import emission_for
from lade.engine.purity import leaves_alone
from lade.engine.scores import Record
from lade.engine.stream import Stream
from lade.entry.inputs import check_inputs, check_strategy
from lade.entry.reference import check_reference, references_for, references_of
from lade.entry.stopstrings import with_stop_strings
from lade.memory.hashing import Array
from lade.memory.pools import check_tenant
from lade.target.budget import KVBudget
from lade.target.call import Call

# Arguments of `model.generate` that mean something else, or nothing, for one request of an engine -> what is allowed.
REFUSED = {
    "custom_generate": (None,),
    "assistant_model": (None,),
    "position_ids": (None,),
    "num_return_sequences": (None, 1),
    "return_dict_in_generate": (None, False),
}
SEEDS = 1 << 64


@dataclass(frozen=True, slots=True)
class Submission:
    """The arguments of `lade.Engine.submit` that are lade's own.

    Attributes:
        corpus: of `corpus_given`.
        together: whether tokens are chosen after all nodes of a step at once (`emission_for`).

    Raises:
        ValueError: one of them is wrong.
    """

    model: Any
    config: LookaheadConfig
    seed: int | None
    streamer: Streamer | None
    tokenizer: PreTrainedTokenizerBase | None
    reference: Any
    corpus: Array | None
    tenant: str | None
    drafts: bool = True
    logprobs: int | None = None
    prompt_logprobs: bool = False
    forced: Callable[[Sequence[int]], Sequence[int]] | None = None
    together: bool = False

    def __post_init__(self) -> None:
        if self.seed is not None:
            check_integer("seed", self.seed, "None or an integer from 0 to 2**64 - 1", lambda seed: 0 <= seed < SEEDS)
        check_streamer(self.streamer)
        check_tokenizer("tokenizer", self.tokenizer)
        if self.tenant is not None:
            check_tenant(self.tenant)
        check_reference(references_of(self.reference), self.config, self.model)
        check_switch("drafts", self.drafts)
        check_switch("prompt_logprobs", self.prompt_logprobs)
        if self.forced is not None and not callable(self.forced):
            raise invalid("forced", "None or a function from token ids to token ids", self.forced)
        if self.logprobs is not None:
            check_integer("logprobs", self.logprobs, "None or an integer of at least 0", lambda top: top >= 0)
        elif self.prompt_logprobs:
            raise invalid("logprobs", "an integer of at least 0 where prompt_logprobs is given", None)

    def call(self, input_ids: torch.Tensor, generate_kwargs: dict[str, Any]) -> Call:
        """The call of transformers' decoding method that plain decoding would make.

        Raises:
            ValueError: an argument is wrong.
        """
        for name, allowed in REFUSED.items():
            if generate_kwargs.get(name) not in allowed:
                raise invalid(name, " or ".join(map(repr, allowed)), generate_kwargs[name])
        prompts = check_inputs(self.model, input_ids, generate_kwargs)
        if prompts != 1:
            raise ValueError(f"input_ids must hold one prompt, got {prompts}")
        kwargs = with_stop_strings(generate_kwargs, self.tokenizer)
        call = prepared(self.model, input_ids, tokenizer=self.tokenizer, **kwargs)
        _check_padding(call)
        return call

    def request(self, call: Call) -> Request:
        """The request of a call."""
        (request,) = requests_of(call)
        sampling = call.generation_config.do_sample
        stream = Stream(self.streamer, [request], call.pad_token)
        noise = Noise(1, call.input_ids.device, self._generator(call.input_ids.device)) if sampling else None
        record = Record.asked_by(call.generation_config)
        request.drafts, request.forced = bool(self.drafts), self.forced
        if self.logprobs is not None:
            request.logprobs = Logprobs(self.logprobs, bool(self.prompt_logprobs))
        way = {"proposals": False, "together": self.together}
        request.emission = emission_for(call, [request], stream, noise, record, **way)
        request.undisturbed = leaves_alone(call, self.streamer, self.forced)
        request.inverse_temperature = inverse_temperature_of(call)
        # The generator is the request's own: its processors, criteria and streamer cannot draw from it.
        request.noise = None if noise is None else noise.ahead(request.row)
        given = references_for(
            references_of(self.reference), call.generation_config, self.config, call.model, prompts=1
        )
        request.reference = None if given is None else given[0]
        request.corpus, request.tenant = self.corpus, self.tenant
        if self.streamer is not None:
            request.on_end = self._end_stream
            self.streamer.put(call.input_ids.cpu())
        return request

    def _generator(self, device: torch.device) -> torch.Generator:
        generator = torch.Generator(device)
        if self.seed is None:
            generator.seed()
        else:
            generator.manual_seed(self.seed)
        return generator

    def _end_stream(self, request: Request) -> None:
        if request.error is None and self.streamer is not None:
            self.streamer.end()


def _check_padding(call: Call) -> None:
    mask = call.model_kwargs.get("attention_mask")
    if mask is not None and bool((mask[0, 1:] < mask[0, :-1]).any()):
        hint = (
            "where none is given, transformers takes the padding tokens of a prompt for padding; "
            "attention_mask=torch.ones_like(input_ids) makes them text"
        )
        raise ValueError(f"attention_mask must have no zeros behind ones, got some ({hint})")


def check_memory(call: Call, budget: KVBudget) -> None:
    """ValueError where a budget can never hold the keys and values of a call with one prompt."""
    (request,) = requests_of(call)
    prompt, new = request.prompt_length, request.limit
    needed = budget.bytes(prompt + new)
    if needed > budget.limit:
        raise ValueError(
            f"input_ids and max_new_tokens must need at most kv_bytes, {budget.limit} bytes of keys and values, "
            f"got {prompt} + {new} tokens, which may need {needed}"
        )


def prepared(model: Any, input_ids: torch.Tensor, *, tokenizer: Any = None, **generate_kwargs: Any) -> Call:
    """The arguments that `model.generate` hands to its decoding method; nothing is decoded."""
    calls: list[Call] = []

    def custom_generate(
        whole: Any,
        ids: torch.Tensor,
        logits_processor: Any = None,
        stopping_criteria: Any = None,
        generation_config: Any = None,
        **model_kwargs: Any,
    ) -> torch.Tensor:
        check_strategy(generation_config)
        model_kwargs.setdefault("tokenizer", tokenizer)
        synced = bool(model_kwargs.pop("synced_gpus", False))
        calls.append(Call(whole, ids, logits_processor, stopping_criteria, generation_config, synced, model_kwargs))
        return ids

    model.generate(input_ids=input_ids, custom_generate=custom_generate, **generate_kwargs)
    (call,) = calls
    return call


def trial(model: Any, **generate_kwargs: Any) -> Call:
    """A call for one token, to ask whether a model decodes draft trees before any prompt is known."""
    ids = torch.zeros(1, 1, dtype=torch.long, device=model.device)
    return prepared(model, ids, attention_mask=torch.ones_like(ids), max_new_tokens=1, **generate_kwargs)


def greedy(call: Call) -> Call:
    """The same call without sampling and processors: drafts for many requests are the likeliest tokens."""
    config = GenerationConfig.from_dict(call.generation_config.to_dict())
    config.do_sample = False
    return replace(call, generation_config=config, processors=LogitsProcessorList())
