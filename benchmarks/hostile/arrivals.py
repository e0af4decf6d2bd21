"""The requests of a crowd: drawn from its case, decoded alone by plain `generate`, submitted to an engine."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import PreTrainedModel

import lade
from hostile.calls import CallInputs, arguments, plainly, reference_of
from hostile.case import Case
from hostile.draw import request_of
from hostile.images import LONGEST, following
from hostile.outcome import CallOutcome, differences
from hostile.subjects import SEEING
from hostile.ties import near_tie
from hostile.users import Log, StopError

DEPARTURES = ("", "waiting", "reading", "decoding")  # when a request is cancelled; the first one: never
TOO_LARGE = "input_ids and max_new_tokens must need at most kv_bytes"
CHUNK = 64  # tokens that are kept together for later requests
TENANTS = (None, "a tenant", "another tenant")


@dataclass(eq=False)
class Arrival:
    """One request of a crowd.

    Attributes:
        case: of the request alone.
        given: its arguments.
        plain: what plain decoding makes of them.
        wait: steps of the engine before it is submitted.
        departure: of `DEPARTURES`.
        patience: tokens that it may emit before it is cancelled, where it is cancelled while decoding.
        fails_at: call at which its streamer raises.
        request: what `submit` has returned, or
        error: what it has raised.
        cut: whether it was cancelled before its end.
    """

    case: Case
    given: CallInputs
    plain: CallOutcome
    wait: int
    departure: str
    patience: int
    tenant: str | None
    fails_at: int | None = None
    request: Any = None
    error: Exception | None = None
    cut: bool = False

    def fresh(self, model: PreTrainedModel) -> CallInputs:
        """New arguments of the same call."""
        return _given(self.case, model, self.fails_at)

    def submit(self, engine: lade.Engine, model: PreTrainedModel) -> None:
        """Submit the request; what `submit` raises is the arrival's `error`."""
        reference = reference_of(self.case, model, self.given, self.plain.sequences)
        own = {"seed": _seed(self.case), "reference": reference, "tenant": self.tenant}
        try:
            self.request = engine.submit(**self.given.arguments, **own)
        except (ValueError, StopError) as error:  # a streamer gets the prompt at once
            self.error = error

    def maybe_cancel(self, engine: lade.Engine) -> None:
        """Cancel the request if its time has come; called after `submit` and after every step."""
        request = self.request
        if request is None:
            return
        reading = 0 < request.prefilled < request.prompt_length
        due = {"waiting": True, "reading": reading, "decoding": request.emitted >= self.patience}
        if not self.cut and not request.finished and due.get(self.departure):
            engine.cancel(request)
            self.cut = True

    def next(self, case: Case, draws: random.Random) -> Case:
        """The case as the next turn of this request's conversation."""
        assert self.plain.sequences is not None
        prompt: torch.Tensor = self.given.arguments["input_ids"]
        return following(case, self.case, self.plain.sequences[0].tolist(), prompt.shape[1], draws)

    @property
    def tokens(self) -> int:
        """Of its prompt and answer, at most."""
        prompt: torch.Tensor = self.given.arguments["input_ids"]
        return prompt.shape[1] + self.case.new_tokens

    @property
    def refused(self) -> bool:
        """Whether `submit` refused arguments that plain decoding takes, and may do so."""
        text = str(self.error) if isinstance(self.error, ValueError) else ""
        foreign = self.case.reference == "outside" and text.startswith("reference must hold token ids")
        gaps = text.startswith("attention_mask must have no zeros behind ones")  # padding tokens inside a prompt
        return foreign or gaps or text.startswith(("the arguments must let draft trees be decoded", TOO_LARGE))

    def findings(self, model: PreTrainedModel) -> tuple[list[str], str | None]:
        """Differences from plain decoding; and a line about the near-tie instead, where there is one."""
        if self.refused:
            return [], None
        if self.request is not None and not self.request.finished:
            return [f"{self} has not finished"], None
        ours = self._outcome()
        plain = self._until(ours) if self.cut else self.plain
        found = differences(ours, plain, drawn=False)
        tie = near_tie(self.case, model, ours, plain, arguments(self.case, model)) if found else None
        return ([] if tie else [f"{line}, in {self}" for line in found]), tie

    def __str__(self) -> str:
        drawn = str(self.case).split(": request ", 1)[1]
        return f"request {self.case.index} (cancelled={self.departure!r} tenant={self.tenant!r} {drawn})"

    def _outcome(self) -> CallOutcome:
        request, given, result = self.request, self.given, None
        error = self.error if request is None else request.error
        if error is None:
            prompt: torch.Tensor = given.arguments["input_ids"]  # a request's tokens leave out what a mask hides
            new = torch.tensor([request.tokens[request.prompt_length :]], dtype=prompt.dtype)
            result = torch.cat([prompt, new], dim=1)
        handed = given.log.handed if given.log is not None else []
        return CallOutcome(result, error, handed=handed, notes=given.notes, own=self.plain.own)

    def _until(self, ours: CallOutcome) -> CallOutcome:
        """Plain decoding's outcome, as far as the engine came."""
        plain, emitted = self.plain, self.request.emitted
        length = self.given.arguments["input_ids"].shape[1] + emitted
        text = None if plain.sequences is None else plain.sequences[:, :length]
        handed = [*plain.handed[: 1 + emitted], "end"] if self.given.log is not None else []
        if plain.sequences is None:
            text = ours.result  # plain decoding raises an error later on, and returns no text
        kinds, notes = [note[0] for note in plain.notes], 0
        for kind in dict.fromkeys(kinds):
            notes += min(emitted, kinds.count(kind))
        return replace(plain, result=text, error=None, handed=handed, notes=plain.notes[:notes])


def arrivals(case: Case, model: PreTrainedModel) -> list[Arrival]:
    """The crowd of a case, in order of arrival."""
    draws, found = case.draws("crowd"), list[Arrival]()
    for number in range(case.requests):
        own = request_of(case, draws, number)
        earlier = _earlier(draws, found) if case.model in SEEING else None
        arrival = _arrival(own if earlier is None else earlier.next(own, draws), model, draws)
        if earlier is not None:
            arrival.wait = draws.choice((0, 60, 60))
            arrival.tenant = earlier.tenant if draws.random() < 0.8 else arrival.tenant
        found.append(arrival)
    return found


def _earlier(draws: random.Random, crowd: list[Arrival]) -> Arrival | None:
    """A request that the next one follows, rather one that is long enough to be kept for it; or `None`."""
    lengths = [0 if each.plain.sequences is None else each.plain.sequences.numel() for each in crowd]
    weights = [(0 < length < LONGEST) * (9 if length > CHUNK else 1) for length in lengths]
    return draws.choices(crowd, weights)[0] if any(weights) and draws.random() < 0.5 else None


def _arrival(own: Case, model: PreTrainedModel, draws: random.Random) -> Arrival:
    departure = draws.choice(DEPARTURES) if draws.random() < 0.25 else ""
    fails_at = draws.randrange(own.new_tokens + 1) if draws.random() < 0.15 else None
    return Arrival(
        case=own,
        given=_given(own, model, fails_at),
        plain=plainly(own, model, _given(own, model, fails_at)),
        wait=draws.choice((0, 0, 0, 1, 2, 5)),
        departure=departure,
        patience=draws.randrange(own.new_tokens),
        tenant=draws.choice(TENANTS),
        fails_at=fails_at,
    )


def _given(case: Case, model: PreTrainedModel, fails_at: int | None) -> CallInputs:
    """New arguments; a streamer, where there is one, raises at this call."""
    given = arguments(case, model)
    if given.log is not None:
        given.log = given.arguments["streamer"] = Log(fails_at)
    return given


def _seed(case: Case) -> int:
    """The seed that plain decoding of the case has."""
    return case.draws("seed").randrange(1 << 30)
