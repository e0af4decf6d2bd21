"""The thread that steps the engine while there is work. Knows the engine; no HTTP and no text.

It hands what is new of all requests over to its user in one call: after a step where a text has begun or ended, else
at intervals, since a hand-over per step of a small model takes longer than its tokens are worth to a reader.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import lade
from lade.core.logprobs import TokenLogprob

log = logging.getLogger("lade.serve")
# Who takes the updates often waits for a core that this thread would keep for another step.
_let_others_run: Callable[[], None] = getattr(os, "sched_yield", lambda: None)


@dataclass(slots=True, eq=False)
class Job:
    """One request of the engine, and where its updates go.

    Attributes:
        inbox: what the user of the worker wants back with the updates.
        told: tokens that were handed over, the prompt's included.
    """

    request: lade.Request
    inbox: Any
    told: int = field(init=False)

    def __post_init__(self) -> None:
        self.told = self.request.prompt_length


@dataclass(frozen=True, slots=True)
class Update:
    """What a step did for one request.

    Attributes:
        inbox: of its job.
        tokens: new ones.
        logprobs: of these, where they are noted.
        ended: whether these are the last ones.
        first: whether none came before.
    """

    inbox: Any
    tokens: list[int]
    logprobs: Sequence[TokenLogprob]
    ended: bool
    first: bool = False


class Intervals:
    """When updates are due: a time after the last ones, sooner where another step would end after it.

    Args:
        seconds: the time.
    """

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds, self._clock = seconds, clock
        self._asked = self._delivered = clock()

    def over(self, urgent: bool) -> bool:
        """Whether updates are due after a step; if so, they count as delivered now."""
        now = self._clock()
        step, self._asked = now - self._asked, now
        if not urgent and now + step < self._delivered + self._seconds:
            return False
        self._delivered = now
        return True


class EngineWorker:
    """Steps an engine. `add`, `cancel` and `stop` are for any thread.

    Args:
        engine: closed by the worker.
        deliver: takes the updates of all requests since it was last called; called by the worker's thread, must not
            block.
        interval: seconds between two calls of it, unless a text begins or ends, or a step takes longer.
        clock: seconds.
    """

    def __init__(
        self,
        engine: lade.Engine,
        deliver: Callable[[list[Update]], None],
        interval: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.engine, self._deliver = engine, deliver
        self._intervals = Intervals(interval, clock)
        self._updates: list[Update] = []  # that were not delivered yet
        self._jobs: list[Job] = []
        self._entering: list[Job] = []
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = self._closed = False
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="lade-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def healthy(self) -> bool:
        """Whether requests are decoded."""
        return self.error is None and not self._stopping and self._thread.is_alive()

    def add(self, request: lade.Request, inbox: Any) -> None:
        """Hand over what becomes of a request that was submitted to the engine."""
        with self._lock:
            closed = self._closed
            if not closed:
                self._entering.append(Job(request, inbox))
        if closed:  # it was, after the request was submitted
            self._deliver([Update(inbox, [], [], ended=True)])
        self._wake.set()

    def cancel(self, request: lade.Request) -> None:
        self.engine.cancel(request)
        self._wake.set()

    def stop(self) -> None:
        """End all requests, close the engine and wait for the thread. A second call does nothing."""
        self._stopping = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._wake.wait()
                self._wake.clear()
                while not self._stopping and self._step():
                    pass
        except Exception as error:
            log.exception("the engine failed")
            self.error = error
        self._close()

    def _step(self) -> bool:
        """One step, and its updates. Returns whether there is more to do."""
        left = self.engine.step()
        self._hand_over()
        return left or bool(self._jobs)

    def _hand_over(self) -> None:
        with self._lock:
            self._jobs += self._entering
            self._entering.clear()
        news = [found for job in self._jobs if (found := _update_of(job)) is not None]
        self._jobs = [job for job in self._jobs if not (job.request.finished and job.told == len(job.request.tokens))]
        self._updates += news
        if self._intervals.over(any(each.first or each.ended for each in news)) and self._updates:
            updates, self._updates = self._updates, []
            self._deliver(updates)
            _let_others_run()

    def _close(self) -> None:
        self._stopping = True
        try:
            self.engine.close()
        except Exception:
            log.exception("the engine could not be closed")
        with self._lock:
            self._closed = True
            jobs, self._entering = [*self._jobs, *self._entering], []
        for job in jobs:
            job.request.finished = True
        self._jobs = jobs
        self._hand_over()


def _update_of(job: Job) -> Update | None:
    """What was not handed over yet of a job; `None` if there is nothing."""
    request, begin = job.request, job.told
    ended, tokens = request.finished, request.tokens[begin:]
    if not tokens and not ended:
        return None
    job.told += len(tokens)
    first = begin - request.prompt_length
    noted = [] if request.logprobs is None else request.logprobs.emitted[first : first + len(tokens)]
    return Update(job.inbox, tokens, noted, ended, first == 0)
