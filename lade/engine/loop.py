"""The decode loop: requests come and go, and each step moves all active ones on by one forward.

A step admits requests, drafts, computes one forward, verifies and emits, keeps the accepted paths, learns, and retires
requests that have finished. Knows no drafting method, no model and no sampling.

A slot is one sequence in the target's KV cache; a request has one from its admission to its end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from lade.base.locks import fork_safe_lock
from lade.core.drafter import Drafter, roots
from lade.core.request import Request, Verdict
from lade.core.stats import Clock
from lade.core.tree import Draft, chain
from lade.engine.verification import begin, verify
from lade.target.outputs import Outputs

PROMPT_TOKENS = 256  # of prompts in one forward, beside drafts of other requests


class Target(Protocol):
    """What computes trees: a model, or two of them for contrastive decoding."""

    @property
    def clock(self) -> Clock: ...

    @property
    def vocabulary(self) -> int:
        """The model reads token ids below this one."""
        ...

    @property
    def packed(self) -> bool:
        """Whether a forward takes trees of unequal sizes without padding."""
        ...

    def open(self, slot: int, tokens: int, most: int) -> None:
        """Start an empty sequence.

        Args:
            tokens: of the prompt.
            most: tokens of prompt and answer.
        """
        ...

    def close(self, slot: int) -> None:
        """Free a slot."""
        ...

    def depth_limit(self, slot: int, remaining: int) -> int:
        """The largest depth of a draft in this slot, whose request may emit `remaining` more tokens.

        Negative where the model may have no position for the root.
        """
        ...

    def max_nodes(self, slots: Sequence[int]) -> int:
        """The most nodes that each draft in these slots may have, at least 1."""
        ...

    def forward(self, slots: Sequence[int], drafts: Sequence[Draft]) -> Outputs:
        """One forward of a draft in each of these slots."""
        ...

    def discard(self, slots: Sequence[int]) -> None:
        """Clear the keys and values that the last forward wrote in these slots."""
        ...

    def keep(self, slots: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        """Keep one path in each slot of the last forward, and drop all other nodes."""
        ...


class PrefixStore(Protocol):
    """Keys and values that outlive their requests."""

    def restore(self, slot: int, prompt: Sequence[int], tenant: str | None) -> int:
        """Fill an open, empty slot with the beginning of a prompt. Returns its tokens, fewer than the prompt's."""
        ...

    def keep(self, slot: int, text: Sequence[int], tenant: str | None) -> None:
        """Take what a slot holds, which is this text, before the slot is closed."""
        ...


class DecodeLoop:
    """Decodes requests, which may join and leave between any two steps.

    `submit` and `cancel` may be called by any thread, `step` and `close` by one thread at a time.

    Args:
        slots: the most requests that decode at once; further ones wait.
        prompt_tokens: the most tokens of prompts in a forward that other requests share.
        prefixes: for requests that have none of their own; `None` computes their prompts whole.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter,
        slots: int,
        prompt_tokens: int = PROMPT_TOKENS,
        prefixes: PrefixStore | None = None,
    ) -> None:
        self.target, self.drafter, self.prompt_tokens, self.prefixes = target, drafter, prompt_tokens, prefixes
        self.active: list[Request] = []
        self._free = list(range(slots - 1, -1, -1))
        self._opened: set[int] = set()
        self._waiting: deque[Request] = deque()
        self._lock = fork_safe_lock()
        self._stepping = False
        self._cancelled = False  # whether a request was, since the last step
        self._closed = False

    def submit(self, request: Request) -> None:
        """Decode a request as soon as a slot is free.

        Raises:
            RuntimeError: the engine is closed.
        """
        with self._lock:
            if self._closed:
                raise RuntimeError("the engine must be open to take a request, got a closed one")
            self._waiting.append(request)

    def cancel(self, request: Request) -> None:
        """End a request before the next step; its tokens so far stay. Nothing happens if it has finished."""
        request.cancelled = self._cancelled = True

    def adopt(self, requests: Sequence[Request], first: Outputs) -> None:
        """Take requests whose prompts are in their slots.

        Args:
            requests: all that this loop decodes; their slots stay open at their ends.
            first: the logits after each prompt, as node 0.
        """
        drafts = roots(requests)
        begin(requests, drafts, first)
        verify(requests, drafts)
        for request in requests:
            request.prefilled = request.prompt_length
            if not request.finished:
                self.drafter.start(request)
        self.active = retired(requests)

    def step(self) -> bool:
        """One forward for all active requests. Returns whether any request is left.

        Raises:
            RuntimeError: another thread is in `step`, or the engine is closed.
        """
        with self._lock:
            if self._stepping:
                raise RuntimeError("step must be called by one thread at a time, got a second one")
            if self._closed:
                raise RuntimeError("the engine must be open to step, got a closed one")
            self._stepping = True
        try:
            if self._cancelled:
                self._cancelled = False
                self._end_waiting()
                self._retire()
            if self._waiting:
                self._admit()
            for request in self._outgrown():
                self._advance_alone(request)
            for decoding, reading in self._forwards():
                self._advance(decoding, reading)
            self._retire()
        finally:
            self._stepping = False
        return bool(self.active or self._waiting)

    def close(self) -> None:
        """End all requests and free their slots. A second call does nothing."""
        with self._lock:
            self._closed = True
            left = [*self._waiting, *self.active]
            self._waiting.clear()
        for request in left:
            request.cancelled = True
            if request not in self.active:
                end(request)
        self.prefixes = None
        self._retire()

    def _admit(self) -> None:
        while True:
            with self._lock:
                waiting = self._free and self._waiting
                request = self._waiting.popleft() if waiting else None
            if request is None:
                return
            slot = request.slot = self._free.pop()
            self._opened.add(slot)
            self.target.open(slot, request.prompt_length, request.prompt_length + request.limit)
            if prefixes := request.prefixes or self.prefixes:
                request.prefilled = prefixes.restore(slot, request.tokens, request.tenant)
            self.active.append(request)

    def _end_waiting(self) -> None:
        """End cancelled requests that have no slot yet."""
        with self._lock:
            waiting = list(self._waiting)
            self._waiting = deque(request for request in waiting if not request.cancelled)
        for request in waiting:
            if request.cancelled:
                end(request)

    def _forwards(self) -> list[tuple[list[Request], list[Request]]]:
        """The requests of each forward of this step: those that decode, and those that read their prompts.

        One forward for all if it needs no padding, else one for each prompt.
        """
        decoding = [request for request in self.active if not reads(request) and not self._outgrows(request)]
        reading = self._reading() if len(decoding) < len(self.active) else []
        if self.target.packed or not reading:
            return [(decoding, reading)] if decoding or reading else []
        return [*([(decoding, [])] if decoding else []), *(([], [request]) for request in reading)]

    def _outgrown(self) -> list[Request]:
        return [request for request in self.active if not reads(request) and self._outgrows(request)]

    def _outgrows(self, request: Request) -> bool:
        """Whether the model may have no position for its root; a call's own loop lets its caller see the error."""
        return request.slot in self._opened and self._depth(request) < 0

    def _depth(self, request: Request) -> int:
        return self.target.depth_limit(request.slot, request.limit - request.emitted)

    def _reading(self) -> list[Request]:
        """The requests whose prompts go on in this step: the first ones, up to the most tokens of prompts."""
        left, reading = self.prompt_tokens, []
        for request in self.active:
            if reads(request) and left > 0:
                reading.append(request)
                left -= request.prompt_length - request.prefilled
        return reading

    def _advance(self, decoding: Sequence[Request], reading: Sequence[Request]) -> None:
        requests = [*decoding, *reading]
        slots = [request.slot for request in requests]
        drafts = self._drafts(decoding) + self._chunks(reading)
        drafts, outputs = self._forward(requests, slots, drafts)
        verdicts = verify(requests, drafts)
        self.target.keep(slots, [verdict.path for verdict in verdicts])
        if decoding:
            self._learn(decoding, drafts, verdicts, outputs)
        for request, draft in zip(reading, drafts[len(decoding) :], strict=True):
            request.prefilled += len(draft)
            if not reads(request) and not request.finished:
                self.drafter.start(request)
        if reading:
            self.drafter.pause()

    def _advance_alone(self, request: Request) -> None:
        """A forward without a draft, which may raise; that ends this request alone."""
        slots, drafts = [request.slot], roots([request])
        try:
            self._computed([request], slots, drafts)
        except Exception as error:  # noqa: BLE001 - the model's own
            request.error, request.finished = error, True
            return
        (verdict,) = verify([request], drafts)
        self.target.keep(slots, [verdict.path])

    def _drafts(self, decoding: Sequence[Request]) -> list[Draft]:
        if not decoding:
            return []
        target = self.target
        depths = [max(0, self._depth(request)) for request in decoding]
        max_nodes = target.max_nodes([request.slot for request in decoding])
        for request in decoding:
            request.max_nodes = min(request.max_nodes, max_nodes)
        with target.clock.drafting():
            return [draft.within(target.vocabulary) for draft in self.drafter.draft(decoding, depths)]

    def _chunks(self, reading: Sequence[Request]) -> list[Draft]:
        """The next tokens of prompts, as chains; logits are asked for after a prompt's last one only."""
        left, chunks = self.prompt_tokens, []
        for request in reading:
            most = min(left, self.target.max_nodes([request.slot]))
            end = min(request.prefilled + most, request.prompt_length)
            chunks.append(chain(request.tokens[request.prefilled : end], asked=end == request.prompt_length))
            left -= len(chunks[-1])
        return chunks

    def _forward(
        self, requests: Sequence[Request], slots: Sequence[int], drafts: list[Draft]
    ) -> tuple[list[Draft], Outputs]:
        """One forward; where a draft makes a row's logits NaN, a second one of all roots without drafts.

        A mask does not hide keys or values that are NaN or infinite, so one such token makes all logits of its tree
        NaN, and plain decoding might never choose it. Its request gets no drafts any more.
        """
        outputs = self._computed(requests, slots, drafts)
        drafted = [row for row, draft in enumerate(drafts) if len(draft) > 1 and not reads(requests[row])]
        with_nan = [requests[row] for row in outputs.nan_rows(drafted)] if drafted else []
        if not with_nan:
            return drafts, outputs
        self.target.discard([request.slot for request in with_nan])
        for request in with_nan:
            request.max_nodes = 1
        drafts = [
            draft if reads(request) else Draft.alone(request.tokens[-1])
            for request, draft in zip(requests, drafts, strict=True)
        ]
        return drafts, self._computed(requests, slots, drafts)

    def _computed(self, requests: Sequence[Request], slots: Sequence[int], drafts: Sequence[Draft]) -> Outputs:
        outputs = self.target.forward(slots, drafts)
        outputs.inverse_temperatures = [request.inverse_temperature for request in requests]
        begin(requests, drafts, outputs)  # before the host reads anything, so that it reads once
        return outputs

    def _learn(
        self, decoding: Sequence[Request], drafts: Sequence[Draft], verdicts: Sequence[Verdict], outputs: Outputs
    ) -> None:
        number = len(decoding)
        for request, draft, verdict in zip(decoding, drafts, verdicts, strict=False):
            request.tally.add(draft, verdict)
        self.drafter.observe(decoding, drafts[:number], verdicts[:number], outputs)

    def _retire(self) -> None:
        """Let go of requests that have finished or were cancelled."""
        ended = [request for request in self.active if request.finished or request.cancelled]
        if not ended:
            return
        for request in ended:
            self.drafter.stop(request)
            if request.slot in self._opened:
                if request.error is None and (prefixes := request.prefixes or self.prefixes):
                    prefixes.keep(request.slot, computed(request), request.tenant)
                self._opened.remove(request.slot)
                self.target.close(request.slot)
                self._free.append(request.slot)
            end(request)
        self.active = retired(self.active)


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
