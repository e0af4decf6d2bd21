"""Comparing conversations: every turn continues from the cache of the turn before."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from families import PAD
from torch import Tensor
from transformers import PreTrainedModel

import lade
from hostile.calls import CallInputs, arguments, patched, plainly, with_lade
from hostile.case import Case
from hostile.outcome import CallOutcome, differences
from hostile.prompts import vocabulary_of
from hostile.prompts import words as random_words
from hostile.subjects import subject
from hostile.ties import near_tie
from hostile.users import Log
from hostile.verdict import CaseVerdict


@dataclass(frozen=True)
class Turn:
    """One turn with plain decoding: its inputs, the new words, and its outcome with a copy of the cache."""

    given: CallInputs
    words: dict[str, Tensor]
    outcome: CallOutcome


def run(case: Case, verdict: CaseVerdict) -> None:
    """Run the conversation plainly, then with lade, with separate caches and the same user turns."""
    model = subject(case.model, case.attention, case.dtype)
    lade.drop_pools()
    turns = _spoken(case, model)
    given, ours = arguments(case, model), CallOutcome()
    for number, turn in enumerate(turns):
        given = _next(ours, given, turn.words) if number else given
        ours = with_lade(case, model, given, turn.outcome.sequences)
        if ours.sequences is not None:
            width = given.arguments["input_ids"].shape[1]
            verdict.count((ours.sequences.shape[1] - width) * ours.sequences.shape[0], ours.stats)
        if not _agree(case, model, number, ours, turn, verdict):
            break
    if patched():
        verdict.differences.append("transformers stays patched after the call")


def _spoken(case: Case, model: PreTrainedModel) -> list[Turn]:
    """The conversation plainly."""
    given, words, turns = arguments(case, model), dict[str, Tensor](), list[Turn]()
    for number in range(case.turns + 1):
        outcome = plainly(case, model, given)
        turns.append(Turn(given, words, replace(outcome, cache=copy.deepcopy(outcome.cache))))
        if outcome.error is not None:
            break
        words = _further(case, model, number + 1, outcome, given)
        given = _next(outcome, given, words)
    return turns


def _agree(
    case: Case, model: PreTrainedModel, number: int, ours: CallOutcome, turn: Turn, verdict: CaseVerdict
) -> bool:
    """Whether a turn is equal; differences go into the verdict."""
    found = differences(ours, turn.outcome)
    tie = near_tie(case, model, ours, turn.outcome, _without_a_cache(turn.given)) if found else None
    if tie is not None:
        verdict.ties.append(tie)
    elif found:
        again = _spoken(case, model)[number].outcome  # a stateful model may not be deterministic
        verdict.unsteady = "; ".join(differences(again, turn.outcome))
        verdict.differences += [f"turn {number + 1}: {line}" for line in found if not verdict.unsteady]
    return not found


def _without_a_cache(given: CallInputs) -> CallInputs:
    """The same inputs without a cache."""
    return CallInputs(
        {name: value for name, value in given.arguments.items() if name not in ("past_key_values", "streamer")}
    )


def _further(case: Case, model: PreTrainedModel, turn: int, plain: CallOutcome, given: CallInputs) -> dict[str, Tensor]:
    """Inputs of the next turn: the text so far with the user's words, and its mask."""
    text, mask = plain.sequences, given.arguments.get("attention_mask")
    if text is None:
        return {}
    draws = case.draws(f"turn {turn}")
    size = vocabulary_of(model)
    said = torch.tensor([random_words(draws, 3, size) for _ in range(len(text))])
    inputs = {"input_ids": torch.cat([text, said.to(text.dtype)], dim=1)}
    prompt = given.arguments["input_ids"].shape[1]
    if mask is not None:
        new = _answered(text[:, prompt:], given.arguments.get("eos_token_id"), draws.random() < 0.75)
        inputs["attention_mask"] = torch.cat([mask, new, torch.ones_like(said)], dim=1).to(mask.dtype)
    return inputs


def _answered(new: Tensor, eos: Any, careful: bool) -> Tensor:
    """[B, T] ones; with `careful`, zeros after a row's first EOS."""
    ends = [] if eos is None else [eos] if isinstance(eos, int) else list(eos)
    ended = torch.isin(new, torch.tensor(ends, dtype=new.dtype)).long().cumsum(1)
    behind = (ended.cumsum(1) > 1) & (new == PAD)
    return (~behind).long() if careful else torch.ones_like(new)


def _next(outcome: CallOutcome, given: CallInputs, inputs: dict[str, Tensor]) -> CallInputs:
    asked = {name: value for name, value in given.arguments.items() if name not in ("attention_mask", "input_ids")}
    asked |= inputs | {"past_key_values": outcome.cache}
    if given.log is not None:
        asked["streamer"] = Log()
    return replace(given, arguments=asked, cache=outcome.cache, log=asked.get("streamer"))
