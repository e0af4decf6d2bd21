"""Concurrent calls in threads, and a fork during a call: every text must equal the text of the call alone.

Greedy, because all threads share torch's global generator.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
from transformers import LogitsProcessor, LogitsProcessorList

import lade
from hostile.calls import augmented, patched
from hostile.case import Case
from hostile.prompts import laid_out, vocabulary_of, words
from hostile.subjects import subject
from hostile.verdict import CaseVerdict

THREADS = 4
TIMEOUT = 30.0  # seconds
FORKS = 2


class Waits(LogitsProcessor):
    """Waits during a call until other calls are done."""

    def __init__(self, others: threading.Event) -> None:
        self.others, self.timed_out = others, False

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        if not self.others.is_set() and not self.others.wait(TIMEOUT):
            self.timed_out = True
            self.others.set()
        return scores


def run(case: Case, verdict: CaseVerdict) -> None:
    model = subject(case.model, case.attention, case.dtype)
    lade.drop_pools()
    inputs = [_inputs(case, model, number) for number in range(THREADS)]
    plain = [model.generate(**each) for each in inputs]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        verdict.differences += ATTACKS[case.attack](case, model, inputs, plain)
        with augmented(case.config):
            alone = model.generate(**inputs[0])
    verdict.count(sum(text.numel() for text in plain), lade.last_stats())
    verdict.differences += _compared([alone], plain[:1], "the call after them")
    if patched():
        verdict.differences.append("transformers stays patched after the threads")


def _inputs(case: Case, model: Any, number: int) -> dict[str, Any]:
    draws = case.draws(f"thread {number}")
    rows = [words(draws, draws.randint(1, 16), vocabulary_of(model)) for _ in range(draws.choice((1, 1, 3)))]
    return laid_out(rows, "left", draws) | {"max_new_tokens": case.new_tokens, "do_sample": False}


def _compared(ours: list[Any], plain: list[Any], what: str = "thread") -> list[str]:
    found = []
    for number, (one, other) in enumerate(zip(ours, plain, strict=True)):
        if isinstance(one, BaseException):
            found.append(f"{what} {number} raises {type(one).__name__}: {one}")
        elif not torch.equal(one, other):
            found.append(f"{what} {number} writes another text: {one.tolist()}, plainly {other.tolist()}")
    return found


def _side_by_side(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """Results or exceptions of the calls, started together."""
    start = threading.Barrier(len(calls))

    def begun(call: Callable[[], Any]) -> Any:
        start.wait(TIMEOUT)
        try:
            return call()
        except Exception as error:  # noqa: BLE001 - compared
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(begun, calls))


def _together(case: Case, model: Any, inputs: list[Any], plain: list[Any]) -> list[str]:
    """With the patch and the case's settings."""
    with augmented(case.config):
        return _compared(_side_by_side([partial(model.generate, **each) for each in inputs]), plain)


def _tenants(case: Case, model: Any, inputs: list[Any], plain: list[Any]) -> list[str]:
    """With one shared pool."""
    with augmented({"mode": "auto", "tenant": "all", "pool_size": 20}):
        _side_by_side([partial(model.generate, **each) for each in inputs])
        return _compared(_side_by_side([partial(model.generate, **each) for each in inputs]), plain)


def _scopes(case: Case, model: Any, inputs: list[Any], plain: list[Any]) -> list[str]:
    """Every thread with its own settings, one without lade."""
    configs = (
        lade.LookaheadConfig(mode="auto", budget=9),
        lade.LookaheadConfig(mode="lookahead", window=3, ngram=4),
        lade.LookaheadConfig(mode="auto"),
    )

    def call(number: int) -> Any:
        if number == len(configs):
            return model.generate(**inputs[number])
        with lade.lookahead(model, configs[number]):
            return model.generate(**inputs[number])

    return _compared(_side_by_side([partial(call, number) for number in range(len(inputs))]), plain)


def _switched(case: Case, model: Any, inputs: list[Any], plain: list[Any]) -> list[str]:
    """While another thread switches lade on and off."""

    def switch() -> None:
        lade.augment_all()
        lade.restore_all()

    with _beside(switch):
        found = _compared(_side_by_side([partial(model.generate, **each) for each in inputs]), plain)
    lade.restore_all()
    return found


def _waiting(case: Case, model: Any, inputs: list[Any], plain: list[Any]) -> list[str]:
    """One call waits in a user's processor until the others have ended."""
    done = threading.Event()
    waits = Waits(done)
    others = len(inputs) - 1
    ended = threading.Semaphore(0)

    def other(each: dict[str, Any]) -> Any:
        try:
            return model.generate(**each)
        finally:
            ended.release()

    def watch() -> None:
        for _ in range(others):
            ended.acquire(timeout=TIMEOUT)
        done.set()

    first = inputs[0] | {"logits_processor": LogitsProcessorList([waits])}
    with augmented(case.config):
        threading.Thread(target=watch, daemon=True).start()
        calls = [partial(model.generate, **first), *(partial(other, each) for each in inputs[1:])]
        found = _compared(_side_by_side(calls), plain)
    return found + (["a call that waits holds up the others"] if waits.timed_out else [])


def _forked(case: Case, model: Any, inputs: list[Any], plain: list[Any]) -> list[str]:
    """A fork while another thread decodes: the child decodes too."""
    if not hasattr(os, "fork"):
        return []
    found = []
    with augmented(case.config):
        model.generate(**inputs[0])
        for number in range(FORKS):
            with _beside(lambda: model.generate(**inputs[1])):
                time.sleep(case.draws(f"fork {number}").random() * 0.05)
                found += _child(lambda: _compared([model.generate(**inputs[2])], plain[2:3], "the child"))
    return found


@contextlib.contextmanager
def _beside(call: Callable[[], Any]) -> Iterator[None]:
    """Run a call repeatedly in another thread."""
    over = threading.Event()

    def again() -> None:
        while not over.is_set():
            call()

    thread = threading.Thread(target=again)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _child(check: Callable[[], list[str]]) -> list[str]:
    """Differences found in a forked child; it is killed after the timeout."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _in_the_child(check, writing)
    os.close(writing)
    end = time.monotonic() + TIMEOUT
    while time.monotonic() < end:
        if os.waitpid(child, os.WNOHANG)[0]:
            break
        time.sleep(0.01)
    else:
        os.kill(child, 9)
        os.waitpid(child, 0)
        os.close(reading)
        return ["a forked child hangs"]
    with os.fdopen(reading) as told:
        said = told.read()
    return [] if said == "fine" else [f"a forked child says: {said or 'nothing'}"]


def _in_the_child(check: Callable[[], list[str]], writing: int) -> None:
    try:
        said = "; ".join(check()) or "fine"
    except BaseException:  # noqa: BLE001 - told to the parent
        said = traceback.format_exc(limit=-3)
    os.write(writing, said[:4000].encode())
    os._exit(0)


ATTACKS: dict[str, Callable[[Case, Any, list[Any], list[Any]], list[str]]] = {
    "together": _together,
    "tenants": _tenants,
    "scopes": _scopes,
    "switched": _switched,
    "waiting": _waiting,
    "forked": _forked,
}
