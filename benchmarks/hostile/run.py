"""Running cases by number, in several processes."""

from __future__ import annotations

import os
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import torch
import transformers

from hostile import conversation, engine, files, generate, interrupts, serve, threads
from hostile.case import KINDS, Case
from hostile.draw import ATTEMPTS, drawn, kind_of
from hostile.limits import Hang, within
from hostile.subjects import NotBuiltError, subject
from hostile.verdict import CaseVerdict
from hostile.warmth import keep_corpus

RUNNERS: dict[str, Callable[[Case, CaseVerdict], None]] = {
    "generate": generate.run,
    "conversation": conversation.run,
    "files": files.run,
    "signals": interrupts.run,
    "threads": threads.run,
    "engine": engine.run,
    "serve": serve.run,
}
TIMEOUT = 120.0  # seconds per case
TIMEOUT_PER_REQUEST = 3.0  # of an engine or a server
CHUNK = 20  # cases submitted to a process at once
_folders: list[tempfile.TemporaryDirectory[str]] = []  # removed with the process


def numbers(seed: int, count: int, kinds: tuple[str, ...] = KINDS) -> list[int]:
    """The first `count` cases of these kinds."""
    found: list[int] = []
    index = 0
    while len(found) < count:
        if kind_of(seed, index) in kinds:
            found.append(index)
        index += 1
    return found


def judged(seed: int, index: int, requests: int | None = None) -> CaseVerdict:
    """The verdict of the case of this number; `requests` replaces those of an engine."""
    skipped: list[str] = []
    for attempt in range(ATTEMPTS):
        case = drawn(seed, index, attempt)
        if case.requests and requests is not None:
            case = replace(case, requests=requests)
        try:
            model = subject(case.model, case.attention, case.dtype)
        except NotBuiltError as reason:
            skipped.append(f"{case.model}: {reason}")
            continue
        if "corpus" in case.config:
            path = keep_corpus(case, model, Path(os.environ["LADE_CACHE"]))
            case = replace(case, config=case.config | {"corpus": str(path)})
        verdict = judged_case(case)
        verdict.skipped = skipped
        return verdict
    raise RuntimeError(f"--seed {seed} --case {index}: no model could be built in {ATTEMPTS} attempts")


def judged_case(case: Case) -> CaseVerdict:
    """The verdict of the case; an exception in the comparison is a difference."""
    verdict = CaseVerdict(case.kind, str(case), case.model)
    start = time.perf_counter()
    try:
        with within(TIMEOUT + TIMEOUT_PER_REQUEST * case.requests):
            RUNNERS[case.kind](case, verdict)
    except (Exception, Hang):  # noqa: BLE001 - a comparison that breaks is a finding
        verdict.differences.append(f"the comparison failed: {traceback.format_exc(limit=-4)}")
    verdict.seconds = time.perf_counter() - start
    return verdict


def prepare() -> None:
    """Set up a process: one thread, no progress bars, a new cache folder."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    os.environ.pop("USE_LADE", None)
    _folders.append(tempfile.TemporaryDirectory(prefix="laws-"))
    os.environ["LADE_CACHE"] = _folders[-1].name


def one_by_one(seed: int, indices: list[int], requests: int | None = None) -> list[CaseVerdict]:
    return [judged(seed, index, requests) for index in indices]


def side_by_side(seed: int, indices: list[int], jobs: int, requests: int | None = None) -> Iterator[list[CaseVerdict]]:
    """Verdicts in order of completion. A case's index in the list determines its process."""
    if jobs == 1:
        prepare()
        for start in range(0, len(indices), CHUNK):
            yield one_by_one(seed, indices[start : start + CHUNK], requests)
        return
    context = get_context("spawn")
    pools = [ProcessPoolExecutor(1, mp_context=context, initializer=prepare) for _ in range(jobs)]
    waiting = {}
    for job, pool in enumerate(pools):
        own = indices[job::jobs]
        for start in range(0, len(own), CHUNK):
            part = own[start : start + CHUNK]
            waiting[pool.submit(one_by_one, seed, part, requests)] = part
    try:
        for future in as_completed(waiting):
            try:
                yield future.result()
            except BrokenProcessPool:
                yield [_lost(seed, waiting[future])]
    finally:
        for pool in pools:
            pool.shutdown(cancel_futures=True)


def _lost(seed: int, part: list[int]) -> CaseVerdict:
    line = f"--seed {seed} --case {part[0]} to {part[-1]}"
    return CaseVerdict(
        "generate", line, "", differences=["the process died in one of these cases, or in one before them"]
    )
