"""One call that decodes with lookahead: its parts put together, run, and its result as transformers shapes it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import transformers
from packaging.version import Version
from transformers import StoppingCriteriaList, TemperatureLogitsWarper
from transformers.generation import EosTokenCriteria, GenerateDecoderOnlyOutput

from lade.config.settings import Settings
from lade.core.noise import Noise
from lade.core.request import Request
from lade.core.stats import Clock, CompanionClock, record
from lade.drafters.factory import References, drafter_for
from lade.engine import purity
from lade.engine.acceptance import ProposedAtOnce, ProposedTokenByToken
from lade.engine.emission import AtOnce, TokenByToken
from lade.engine.loop import Emission, decode
from lade.engine.method import Method
from lade.engine.padding import pad_ended_rows
from lade.engine.scores import Record
from lade.engine.stopping import Criteria, HostRule, StopRule
from lade.engine.stream import Stream
from lade.engine.text import Text, UnreadText
from lade.facts.positions import position_limit
from lade.target.cache import TreeCache
from lade.target.call import Call, generated_length
from lade.target.contrast import Contrast
from lade.target.contrastive import ContrastiveTarget
from lade.target.masks import layer_kinds
from lade.target.model import HFTarget

UNLIMITED = 1 << 30
GREEDY_SHARPNESS = 1.3
MARKS_USER_CACHES = Version(transformers.__version__) >= Version("5.17")  # older ones: any cache may be the user's


@dataclass(frozen=True, slots=True)
class Beside:
    """A second model that has its say: its own call, and how the two are contrasted."""

    call: Call
    contrast: Contrast


class Decoding:
    """One call: its requests, its target, and how it emits."""

    def __init__(
        self,
        call: Call,
        streamer: Any,
        settings: Settings,
        references: References | None,
        beside: Beside | None = None,
        method: Method | None = None,
    ) -> None:
        self.call, self.streamer, self.settings = call, streamer, settings
        sharpness = choice_sharpness(call)
        self.clock = Clock()
        self.stock = call.model_kwargs["past_key_values"]
        own = _target(call, self.clock, sharpness)
        self.target: HFTarget | ContrastiveTarget = own
        companion = None
        if beside is not None:
            amateur = _target(beside.call, CompanionClock(self.clock))
            self.target = ContrastiveTarget(own, amateur, beside.call, beside.contrast)
            companion = beside.call.model
        self.drafter = (
            drafter_for(call.model, settings, references, sharpness, companion)
            if method is None
            else method.drafter(call, own)
        )
        self.requests = self._requests()
        sampling = call.generation_config.do_sample
        self.draws = sampling and method is not None and not method.likeliest
        self.noise = Noise(len(self.requests), call.input_ids.device) if sampling and not self.draws else None
        wanted = call.generation_config
        keeps = bool(wanted.return_dict_in_generate)
        self.record = Record(keeps and bool(wanted.output_scores), keeps and bool(wanted.output_logits))

    def run(self) -> Any:
        emission = self._emission()
        inputs = {name: value for name, value in self.call.model_kwargs.items() if name != "tokenizer"}
        try:
            first = self.target.prefill(self.call.input_ids, self.call.generation_config, inputs)
            decode(self.requests, first, self.target, self.drafter, emission)
            if self._cache_is_seen():
                pad_ended_rows(self.requests, self.target, self._pad(), self._note(emission))
        finally:
            if self.noise is not None:
                self.noise.rewind(max(request.emitted for request in self.requests))
        if self.streamer is not None:
            self.streamer.end()
        self._finish_stats()
        return self._result()

    def _cache_is_seen(self) -> bool:
        """Whether the caller sees what the cache holds in the end, as with scores and logits always."""
        returned = self.call.generation_config.return_dict_in_generate
        return bool(returned or getattr(self.stock, "_is_user_defined", not MARKS_USER_CACHES))

    def _note(self, emission: Emission) -> Callable[[int, torch.Tensor], None] | None:
        """What takes the logits behind a row's end, where they are recorded."""
        if isinstance(emission, TokenByToken) and self.record.wanted:
            return partial(emission.pad, self._pad())
        return None

    def _requests(self) -> list[Request]:
        width = self.call.input_ids.shape[1]
        limit = generated_length(self.call) - width
        mask = self.call.model_kwargs.get("attention_mask")
        rows = self.call.input_ids.tolist()
        real = [[1] * width] * len(rows) if mask is None else mask[:, -width:].tolist()
        texts = [list(itertools.compress(row, seen)) for row, seen in zip(rows, real, strict=True)]
        return [Request(row, text, len(text), int(min(limit, UNLIMITED))) for row, text in enumerate(texts)]

    def _emission(self) -> Emission:
        call = self.call
        stream = Stream(self.streamer, self.requests, self._pad())
        blind = all(type(processor) in purity.TEXT_BLIND for processor in call.processors)
        counted = all(type(criterion) in purity.HOST_CRITERIA for criterion in call.criteria)
        # On the CPU a copy costs nothing, so warping only the nodes that the walk visits is cheaper than all of them.
        # Proposals are few, and judged together.
        worth = self.draws or (self.noise is None and not call.processors) or call.input_ids.device.type != "cpu"
        if blind and counted and worth and not self.record.wanted:
            at_once = ProposedAtOnce if self.draws else AtOnce
            return at_once(self.requests, stream, call.processors, HostRule(_eos(call.criteria)), self.noise)
        one_by_one = ProposedTokenByToken if self.draws else TokenByToken
        if blind and counted:
            text: Text | UnreadText = UnreadText(call.input_ids.device)
            ends: StopRule = HostRule(_eos(call.criteria))
        else:
            text = Text(call.input_ids)
            ends = Criteria(call.criteria, text, self.record)
        return one_by_one(self.requests, stream, call.processors, ends, text, self.noise, self.record)

    def _pad(self) -> int:
        pad = self.call.generation_config._pad_token_tensor
        return 0 if pad is None else int(pad)

    def _finish_stats(self) -> None:
        emitted = sum(request.emitted for request in self.requests)
        stats = self.clock.stop(len(self.requests), emitted, self.drafter.end())
        record(stats, self.settings.debug)

    def _result(self) -> Any:
        config = self.call.generation_config
        longest = max(request.emitted for request in self.requests)
        new = [
            request.tokens[request.prompt_length :] + [self._pad()] * (longest - request.emitted)
            for request in self.requests
        ]
        ids = self.call.input_ids
        # Choices are int64, so the result of plain decoding is, whatever the prompt's type.
        sequences = torch.cat([ids, torch.tensor(new, dtype=torch.long, device=ids.device)], dim=1)
        if self._cache_is_seen():
            self.target.export(self.stock)
        if not config.return_dict_in_generate:
            return sequences
        return GenerateDecoderOnlyOutput(
            sequences=sequences,
            scores=_stacked(self.record.scores) if config.output_scores else None,
            logits=_stacked(self.record.logits) if config.output_logits else None,
            past_key_values=self.stock,
        )


def _target(call: Call, clock: Clock, sharpness: float = 1.0) -> HFTarget:
    config = call.text_config
    cache = TreeCache(call.model_kwargs["past_key_values"], config)
    return HFTarget(call.model, cache, layer_kinds(config), position_limit(config), clock, sharpness)


def _eos(criteria: StoppingCriteriaList) -> frozenset[int]:
    ids = [criterion.eos_token_id for criterion in criteria if isinstance(criterion, EosTokenCriteria)]
    return frozenset(int(token) for tensor in ids for token in tensor.tolist())


def _stacked(rows: list[list[torch.Tensor]]) -> tuple[torch.Tensor, ...]:
    """[B, V] per index of the longest row's new tokens."""
    return tuple(torch.cat(column) for column in zip(*rows, strict=True))


def choice_sharpness(call: Call) -> float:
    """Inverse temperature at which tokens are chosen. Greedy decoding has none; 1.3 ranks its drafts best."""
    if not call.generation_config.do_sample:
        return GREEDY_SHARPNESS
    warpers = [processor for processor in call.processors if isinstance(processor, TemperatureLogitsWarper)]
    return 1.0 / float(warpers[-1].temperature) if warpers else 1.0
