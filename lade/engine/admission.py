"""Requests that wait, and the slots that they get: first come, first served.

A slot is one sequence in the target's KV cache; a request has one from its admission to its end. The first request that
waits is admitted as soon as a slot is free and the memory budget has room for all that it may come to need. None
overtakes it, so no request waits for ever. Knows no drafting and no forward.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from lade.base.locks import fork_safe_lock
from lade.core.request import Request
from lade.engine.protocols import MemoryBudget, PrefixStore, Target


class Admission:
    """The waiting requests and the slots of one decode loop.

    `submit` may be called by any thread, everything else by the thread that steps.

    Args:
        slots: the most requests that decode at once.
        prefixes: for requests that have none of their own; `None` computes their prompts whole.
        budget: of the slots' memory; `None` for no bound.
    """

    def __init__(
        self, target: Target, slots: int, prefixes: PrefixStore | None = None, budget: MemoryBudget | None = None
    ) -> None:
        self.target, self.prefixes, self.budget = target, prefixes, budget
        self._slots = range(slots)
        self._held: dict[int, Request] = {}  # slot -> who has it
        self._waiting: deque[Request] = deque()
        self._lock = fork_safe_lock()
        self._closed = False

    def __bool__(self) -> bool:
        """Whether any request waits."""
        return bool(self._waiting)

    def opened(self, request: Request) -> bool:
        """Whether a request's slot was opened here."""
        return self._held.get(request.slot) is request

    def all_opened(self) -> list[Request]:
        """The requests whose slots were opened here, or were to be when that failed."""
        return [*self._held.values()]

    def submit(self, request: Request) -> None:
        """Let a request wait.

        Raises:
            RuntimeError: closed.
        """
        with self._lock:
            if self._closed:
                raise RuntimeError("the engine must be open to take a request, got a closed one")
            self._waiting.append(request)

    def admit(self) -> list[Request]:
        """The requests that get a slot now, opened, with the beginnings of their prompts that are kept.

        One whose prompt is read at once is the last one: a step waits for one such prompt at most.
        """
        admitted = list[Request]()
        while not (admitted and admitted[-1].prefill) and (request := self._next()) is not None:
            slot = request.slot
            self.target.open(slot, request.prompt_length, request.prompt_length + request.limit)
            prefixes = request.prefixes or self.prefixes
            if prefixes and not scores_prompt(request):
                request.prefilled = request.cached = prefixes.restore(slot, request.tokens, request.tenant)
            if request.cached:
                request.prefill = None  # what is left of the prompt is text
            admitted.append(request)
        return admitted

    def _next(self) -> Request | None:
        """The first request that waits, with a slot and its memory reserved; `None` if it must wait on."""
        with self._lock:
            if not self._waiting or len(self._held) == len(self._slots):
                return None
            request, slot = self._waiting[0], next(slot for slot in self._slots if slot not in self._held)
            if self.budget and not self.budget.reserve(slot, request.prompt_length + request.limit):
                return None
            request.slot = slot
            self._held[slot] = request  # first: a signal's exception may come as soon as it waits no more
            return self._waiting.popleft()

    def end_cancelled(self) -> None:
        """End cancelled requests that wait."""
        with self._lock:
            waiting = list(self._waiting)
            self._waiting = deque(request for request in waiting if not request.cancelled)
        for request in waiting:
            if request.cancelled:
                end(request)

    def release(self, request: Request, whole: bool = True) -> None:
        """Free a request's slot, if it was opened here; a text without an error is offered to the prefixes first.

        Args:
            whole: whether the slot holds the keys and values of the text; else it is not offered.
        """
        if not self.opened(request):
            return
        if whole and request.error is None and (prefixes := request.prefixes or self.prefixes):
            prefixes.keep(request.slot, computed(request), request.tenant)
        self.target.close(request.slot)
        if self.budget:
            self.budget.release(request.slot)
        del self._held[request.slot]

    def close(self) -> None:
        """Take no further request, and end those that wait. A second call does nothing."""
        with self._lock:
            self._closed = True
            waiting, self._waiting = self._waiting, deque()
        self.prefixes = None
        for request in waiting:
            request.cancelled = True
            end(request)

    @property
    def closed(self) -> bool:
        return self._closed


def end(request: Request) -> None:
    """Finish a request that has left its slot; what its `on_end` raises is its error, unless it has one."""
    request.finished = True
    request.emission = None  # it holds the logits of the last forward
    try:
        if request.on_end is not None:
            request.on_end(request)
    except Exception as error:  # noqa: BLE001 - user code may raise anything; other requests go on
        request.error = request.error or error


def reads(request: Request) -> bool:
    """Whether a part of its prompt is not in the KV cache yet."""
    return request.prefilled < request.prompt_length


def scores_prompt(request: Request) -> bool:
    """Whether the logits after all its prompt tokens are wanted, so that none may be left out."""
    return request.logprobs is not None and request.logprobs.reads_prompt


def computed(request: Request) -> list[int]:
    """The tokens of a request that are in the KV cache: all but the last one, once its prompt is read."""
    return request.tokens[: request.prefilled if reads(request) else -1]


def retired(active: Sequence[Request]) -> list[Request]:
    """The requests that have not finished; the last ones take the places of those that have."""
    left = list(active)
    for row in range(len(left) - 1, -1, -1):
        if left[row].finished:
            left[row] = left[-1]
            del left[-1]
    return left
