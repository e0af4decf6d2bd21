"""Interrupted calls, by a signal or by user code, and the call after them.

The interrupted call must end as plain decoding does; the next one must be exact, with no patch left over.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

import lade
from hostile import generate
from hostile.calls import CallInputs, arguments, patched, plainly, with_lade
from hostile.case import Case
from hostile.outcome import CallOutcome, differences
from hostile.subjects import subject
from hostile.users import Log, Raises, StopError
from hostile.verdict import CaseVerdict

SOURCE = str(Path(lade.__file__).parent)
CALLS = 4000  # approximate number of calls of lade's functions in a short text


class Ended(StoppingCriteria):
    """Raises at the k-th new token."""

    def __init__(self, tokens: int, error: type[BaseException]) -> None:
        self.raises = Raises(tokens, error)

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        return self.raises(input_ids, input_ids.new_zeros(len(input_ids))) > 0


class Signals(LogitsProcessor):
    """Sends the process an interrupt at the k-th new token."""

    def __init__(self, tokens: int) -> None:
        self.left = tokens

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        self.left -= 1
        if self.left == 0:
            _interrupt()
        return scores


def _interrupt() -> None:
    """Raise SIGINT with Python's default handler."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def _streamer(given: CallInputs, tokens: int, error: type[BaseException]) -> None:
    given.log = given.arguments["streamer"] = Log(tokens + 1, error)


def _processor(given: CallInputs, tokens: int, error: type[BaseException]) -> None:
    given.arguments["logits_processor"] = LogitsProcessorList([Raises(tokens, error)])


def _criterion(given: CallInputs, tokens: int, error: type[BaseException]) -> None:
    given.arguments["stopping_criteria"] = StoppingCriteriaList([Ended(tokens, error)])


def _signal(given: CallInputs, tokens: int, error: type[BaseException]) -> None:
    given.arguments["logits_processor"] = LogitsProcessorList([Signals(tokens)])


ATTACKS: dict[str, tuple[Callable[[CallInputs, int, type[BaseException]], None] | None, type[BaseException]]] = {
    "streamer": (_streamer, KeyboardInterrupt),
    "streamer-error": (_streamer, StopError),
    "processor": (_processor, KeyboardInterrupt),
    "processor-error": (_processor, StopError),
    "criterion": (_criterion, KeyboardInterrupt),
    "signal": (_signal, KeyboardInterrupt),
    "anywhere": (None, KeyboardInterrupt),
    "anywhere-again": (None, KeyboardInterrupt),
}


def run(case: Case, verdict: CaseVerdict) -> None:
    model = subject(case.model, case.attention, case.dtype)
    lade.drop_pools()
    attack, error = ATTACKS[case.attack]
    for _ in range(2 if case.attack == "anywhere-again" else 1):
        if attack is None:
            _anywhere(case, model)
        else:
            verdict.differences += _interrupted(case, model, attack, error)
    if patched():
        verdict.differences.append("transformers stays patched after an interrupted call")
    following = replace(case, attack="", lengths=tuple(length + 1 for length in case.lengths))
    generate.compare(following, model, verdict)


def _interrupted(case: Case, model: Any, attack: Callable[..., None], error: type[BaseException]) -> list[str]:
    """Differences of the interrupted call."""
    tokens = case.draws("interrupt").randint(1, case.new_tokens - 1)
    outcomes: list[CallOutcome] = []
    for call in (with_lade, plainly):
        given = arguments(case, model)
        attack(given, tokens, error)
        outcomes.append(call(case, model, given))
    ours, plain = outcomes
    found = differences(ours, plain, drawn=False)
    if plain.error is None:
        found.append("plain decoding was not interrupted")
    return found


def _anywhere(case: Case, model: Any) -> None:
    """Raise KeyboardInterrupt at a random call of one of lade's functions."""
    left = case.draws("anywhere").randrange(1, CALLS)

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal left
        if event == "call" and frame.f_code.co_filename.startswith(SOURCE):
            left -= 1
            if left == 0:
                raise KeyboardInterrupt

    given = arguments(case, model)
    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        with_lade(case, model, given)
    except KeyboardInterrupt:  # raised outside the call's own handlers
        pass
    finally:
        sys.setprofile(before)
