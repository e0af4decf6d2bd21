"""One model that answers requests: plans them, submits their texts to the engine, and brings the updates back.

Lives in the event loop. Knows no endpoint and no format.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import lade
from lade.applications.serve.answer import Answer, Choice
from lade.applications.serve.corpora import Corpora
from lade.applications.serve.errors import NOT_FOUND, APIError, bad, busy, unavailable
from lade.applications.serve.metrics import Metrics
from lade.applications.serve.openmp import release_threads
from lade.applications.serve.plan import Planner, Text
from lade.applications.serve.settings import ServeSettings
from lade.applications.serve.worker import EngineWorker, Update

log = logging.getLogger("lade.serve")


class Service:
    """Answers requests."""

    def __init__(
        self, settings: ServeSettings, engine: lade.Engine, planner: Planner, corpora: Corpora, metrics: Metrics
    ) -> None:
        self.settings, self.engine, self.planner, self.corpora, self.metrics = (
            settings,
            engine,
            planner,
            corpora,
            metrics,
        )
        self.worker = EngineWorker(engine, self._deliver, settings.stream_interval)
        self.texts = 0  # that decode or wait
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing = False

    def start(self) -> None:
        """Begin to decode; called in the event loop."""
        self._loop = asyncio.get_running_loop()
        self.worker.start()

    async def stop(self) -> None:
        """End what runs, and say so in the log. A second call does nothing."""
        self._closing = True
        if self.texts:
            log.warning("texts cut off by the shutdown: %d", self.texts)
        await asyncio.to_thread(self.worker.stop)

    def drain(self) -> None:
        """Take no further requests."""
        self._closing = True

    def check_model(self, name: str | None) -> None:
        """An error where a request is for another model."""
        served = self.settings.model
        if name is not None and name != served:
            raise APIError(NOT_FOUND, f"model must be {served!r}, got another name", "model", "model_not_found")

    @property
    def healthy(self) -> bool:
        return self.worker.healthy and not self._closing

    async def answer(self, plan: Callable[[], list[Text]], texts: int, per_prompt: int, tenant: str | None) -> Answer:
        """Begin to answer a request.

        Args:
            plan: its texts; called in another thread.
            texts: how many these are.
            per_prompt: how many of them each prompt has.

        Raises:
            APIError: a field is wrong, too many requests wait, or the server shuts down.
        """
        start = time.perf_counter()
        self._reserve(texts)
        submitting = asyncio.to_thread(self._begin, plan, per_prompt, tenant, start)
        beginning = asyncio.create_task(self._counted(texts, submitting))
        try:
            return await asyncio.shield(beginning)
        except asyncio.CancelledError:  # whoever waits for the answer is gone
            beginning.add_done_callback(self._abandon)
            raise
        except ValueError as error:
            raise APIError(400, str(error)) from error
        except RuntimeError as error:
            if not self.healthy:  # the engine was closed meanwhile
                raise unavailable() from error
            raise

    def cancel(self, answer: Answer) -> None:
        """End the texts that still run."""
        for choice in answer.choices:
            if choice.finish is None:
                self.worker.cancel(choice.request)

    def _reserve(self, texts: int) -> None:
        if not self.healthy:
            raise unavailable()
        if texts > self.settings.most_texts:
            raise bad("n", f"such that n times the prompts is at most {self.settings.most_texts}", texts)
        if self.texts + texts > self.settings.most_texts:
            self.metrics.refused()
            raise busy()
        self.texts += texts

    def _begin(self, plan: Callable[[], list[Text]], per_prompt: int, tenant: str | None, start: float) -> Answer:
        """Plan and submit texts, in a thread of its own; the engine may decode them before this returns."""
        try:
            texts = plan()
            requests = self._submit(texts, tenant)
        finally:
            release_threads()  # else the engine's may sleep at barriers from now on
        pairs = enumerate(zip(texts, requests, strict=True))
        answer = Answer([self._choice(index, *pair) for index, pair in pairs], per_prompt, start)
        for choice in answer.choices:
            self.worker.add(choice.request, (answer, choice))
        return answer

    def _submit(self, texts: Sequence[Text], tenant: str | None) -> list[lade.Request]:
        """All of them or none."""
        requests = list[lade.Request]()
        try:
            for text in texts:
                requests.append(self.engine.submit(tenant=tenant, **text.generate, **text.own))
        except BaseException:
            for request in requests:
                self.engine.cancel(request)
            raise
        return requests

    async def _counted(self, texts: int, submitting: Awaitable[Answer]) -> Answer:
        """Texts that could not be submitted are none that decode or wait."""
        try:
            return await submitting
        except BaseException:
            self.texts -= texts
            raise

    def _abandon(self, beginning: asyncio.Task[Answer]) -> None:
        if not beginning.cancelled() and beginning.exception() is None:
            self.cancel(beginning.result())

    def _choice(self, index: int, text: Text, request: lade.Request) -> Choice:
        return Choice(index, request, text.answer, text.ends, text.most)

    def _deliver(self, updates: list[Update]) -> None:
        """Called by the engine's thread, for all requests at once."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._put, updates)

    def _put(self, updates: Sequence[Update]) -> None:
        for each in updates:
            answer, choice = each.inbox
            answer.put(choice, each)
            if each.tokens and not answer.begun:
                answer.begun = True
                self.metrics.began(time.perf_counter() - answer.start)
            if each.ended:
                self.texts -= 1
                self.metrics.ended(choice.request)


def ends_of(model: Any) -> frozenset[int]:
    """The tokens that end a text of a model."""
    ends = model.generation_config.eos_token_id
    return frozenset() if ends is None else frozenset(ends if isinstance(ends, list) else [ends])
