"""One call of `generate` with lookahead: its parts, its run, its result."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from transformers import TemperatureLogitsWarper

from lade.config.settings import Settings
from lade.core.drafter import Drafter
from lade.core.noise import Noise
from lade.core.request import Emission, Request
from lade.core.stats import Clock, CompanionClock, record
from lade.distributed.processes import ONE, OneProcess
from lade.drafters.factory import drafter_for, static_pace
from lade.engine.ahead import ChosenAhead
from lade.engine.emission import TokenByToken
from lade.engine.emission_factory import ahead_for, emission_for
from lade.engine.loop import DecodeLoop
from lade.engine.method import Method
from lade.engine.padding import pad_ended_rows
from lade.engine.purity import leaves_alone
from lade.engine.result import result_of, returns_cache
from lade.engine.rounds import drafts_on_device, rounds_of
from lade.engine.scores import Record
from lade.engine.stream import Stream
from lade.engine.target import eager_target, target_of
from lade.pace.pace import WholeBudget
from lade.static.shelf import give_back
from lade.static.target import StaticTarget
from lade.target.call import UNLIMITED, Call, generated_length, prefill_arguments
from lade.target.contrast import Contrast
from lade.target.contrastive import ContrastiveTarget
from lade.target.model import HFTarget
from lade.target.outputs import Outputs

GREEDY_INVERSE_TEMPERATURE = 1.3  # greedy decoding has no temperature; this one ranks its drafts best


@dataclass(frozen=True, slots=True)
class Amateur:
    """The weaker model of contrastive decoding: its own call, and the settings of the contrast."""

    call: Call
    contrast: Contrast


class Decoding:
    """One call of `generate`.

    Args:
        references: per row a text that the output may repeat.
        amateur: for contrastive decoding, else `None`.
        method: drafts with a model; `None` drafts as the settings say.
        processes: how the processes of the run share the call.
    """

    def __init__(
        self,
        call: Call,
        streamer: Any,
        settings: Settings,
        references: Sequence[Sequence[int] | None] | None,
        amateur: Amateur | None = None,
        method: Method | None = None,
        processes: OneProcess = ONE,
    ) -> None:
        self.call, self.streamer, self.settings, self.processes = call, streamer, settings, processes
        self.clock = Clock()
        expert = eager_target(call, self.clock, settings.flash)
        target = target_of(call, settings, expert, _other_kind(amateur, method, processes))
        self.target = processes.target(target) if amateur is None else _contrastive(expert, amateur, self.clock)
        companion = None if amateur is None else amateur.call.model

        def own_drafter(pace: WholeBudget | None) -> Drafter:
            if method is not None:
                return method.drafter(call, expert)
            if isinstance(self.target, StaticTarget):
                pace = static_pace(call.model, settings)
            return drafter_for(call.model, processes.settings or settings, companion, self.target.packed, pace)

        self.drafter = processes.drafter(own_drafter, with_model=method is not None)
        self.requests = requests_of(call)
        sampling = call.generation_config.do_sample
        proposals = sampling and method is not None and not method.likeliest
        self.noise = Noise(len(self.requests), call.input_ids.device) if sampling and not proposals else None
        self.record = Record.asked_by(call.generation_config)
        self.alone = leaves_alone(call, streamer)
        self.emission = self._emission(proposals, drafts_on_device(target, settings))
        self._begin(references, undisturbed=method is None and self.alone)

    def _emission(self, proposals: bool, together: bool) -> Emission:
        """As `emission_for` takes them."""
        call, requests = self.call, self.requests
        stream = Stream(self.streamer, requests, call.pad_token)
        if self.processes.splits:
            return ahead_for(call, requests, stream, self.noise)
        return emission_for(call, requests, stream, self.noise, self.record, proposals, together, self.alone)

    def _begin(self, references: Sequence[Sequence[int] | None] | None, undisturbed: bool) -> None:
        """Tell the requests what is known of the call."""
        inverse_temperature = inverse_temperature_of(self.call)
        for request in self.requests:
            request.emission, request.inverse_temperature = self.emission, inverse_temperature
            request.undisturbed = undisturbed
            request.reference = references[request.row] if references is not None else None
            if self.noise is not None and self.alone and not self.processes.splits:
                request.noise = self.noise.ahead(request.row)

    def run(self) -> Any:
        """Decode. Returns what plain decoding returns."""
        try:
            self._decode(self.target.prefill(*prefill_arguments(self.call)))
            if isinstance(self.emission, ChosenAhead):
                self.emission.end()
            if returns_cache(self.call):
                self._pad()
        finally:
            if self.noise is not None:
                self.noise.rewind(max(request.emitted for request in self.requests))
        if self.streamer is not None:
            self.streamer.end()
        self._record_stats()
        result = result_of(self.call, self.requests, self.record)
        if returns_cache(self.call):
            self.target.export(self.call.cache)
        if isinstance(self.target, StaticTarget):
            give_back(self.target)
        return result

    def _decode(self, first: Outputs) -> None:
        rounds = rounds_of(self.call.model, self.settings, self.target, self.drafter)
        loop = DecodeLoop(self.target, self.drafter, slots=len(self.requests), rounds=rounds)
        loop.adopt(self.requests, first)
        while loop.step():
            pass
        for request in self.requests:
            if request.error is not None:
                raise request.error
        self.processes.ended(self.requests)

    def _pad(self) -> None:
        """Compute the padding behind rows that ended early; record its scores and logits where they are asked for."""
        pad, note = self.call.pad_token, None
        if isinstance(self.emission, TokenByToken) and self.record.wanted:
            note = partial(self.emission.pad, pad)
        pad_ended_rows(self.requests, self.target, pad, note)

    def _record_stats(self) -> None:
        emitted = sum(request.emitted for request in self.requests)
        tallies, table = [request.tally for request in self.requests], getattr(self.drafter, "warm_table", None)
        stats = self.clock.stop(tallies, emitted, self.drafter.end(), table)
        record(stats, self.settings.debug)


def _other_kind(amateur: Amateur | None, method: Method | None, processes: OneProcess) -> str | None:
    """Why forwards are of a kind that has no static steps, or `None`."""
    if amateur is not None:
        return "decoding is contrastive"
    if method is not None:
        return "a method drafts with a model"
    return None if processes is ONE else "several processes share the model"


def inverse_temperature_of(call: Call) -> float:
    """The inverse temperature at which tokens are chosen, for the ranking of drafts."""
    if not call.generation_config.do_sample:
        return GREEDY_INVERSE_TEMPERATURE
    warpers = [processor for processor in call.processors if isinstance(processor, TemperatureLogitsWarper)]
    return 1.0 / float(warpers[-1].temperature) if warpers else 1.0


def _contrastive(expert: HFTarget, amateur: Amateur, clock: Clock) -> ContrastiveTarget:
    second = eager_target(amateur.call, CompanionClock(clock), False)
    return ContrastiveTarget(expert, second, amateur.call, amateur.contrast)


def requests_of(call: Call) -> list[Request]:
    """One request per row, without the padding of its prompt."""
    width = call.input_ids.shape[1]
    limit = int(min(generated_length(call) - width, UNLIMITED))
    mask = call.model_kwargs.get("attention_mask")
    rows = call.input_ids.tolist()
    real = [[1] * width] * len(rows) if mask is None else mask[:, -width:].tolist()
    texts = [list(itertools.compress(row, seen)) for row, seen in zip(rows, real, strict=True)]
    awaited = len(texts) > 1
    return [Request(row, text, len(text), limit, awaited=awaited) for row, text in enumerate(texts)]
