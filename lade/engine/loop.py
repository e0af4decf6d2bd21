"""The decode loop: requests come and go, and each step moves all active ones on by one forward.

A step admits requests, drafts, computes one forward, verifies and emits, keeps the accepted paths, learns, and retires
requests that have finished. Knows no drafting method, no model and no sampling.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from lade.base.locks import fork_safe_lock
from lade.core.drafter import Drafter, Follower, roots
from lade.core.logprobs import Logprobs
from lade.core.request import Request
from lade.core.tree import Draft
from lade.engine.admission import Admission, end, reads, retired
from lade.engine.forward import computed, forward
from lade.engine.planning import STEP_TOKENS, Chunk, StepPlan, planned
from lade.engine.protocols import MemoryBudget, PrefixStore, Rounds, Target
from lade.engine.verification import begin, verify
from lade.pace.reading import WHOLE, WholeReading
from lade.target.outputs import Outputs


class DecodeLoop:
    """Decodes requests, which may join and leave between any two steps.

    `submit` and `cancel` may be called by any thread, `step` and `close` by one thread at a time.

    Args:
        slots: the most requests that decode at once; further ones wait.
        step_tokens: of a step that reads prompts: those of prompts and of draft trees (`lade.engine.planning`).
        prefixes: for requests that have none of their own; `None` computes their prompts whole.
        budget: of the slots' memory; `None` for no bound.
        reading: bounds the prompt tokens of steps in which other requests decode.
        rounds: steps that the device drafts by itself, for a drafter that is a `Follower`; `None`: there are none.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter,
        slots: int,
        step_tokens: int = STEP_TOKENS,
        prefixes: PrefixStore | None = None,
        budget: MemoryBudget | None = None,
        reading: WholeReading = WHOLE,
        rounds: Rounds | None = None,
    ) -> None:
        self.target, self.drafter, self.step_tokens, self.reading = target, drafter, step_tokens, reading
        self.rounds, self._follower = rounds, cast("Follower", drafter)
        self._one_pass = getattr(drafter, "reads_likeliest", False)
        self.admission = Admission(target, slots, prefixes, budget)
        self.active: list[Request] = []
        self._lock = fork_safe_lock()
        self._stepping: object | None = None  # the call of `step` that is running
        self._cancelled = False  # whether a request was, since the last step
        self._undisturbed = False  # whether the last step was

    def submit(self, request: Request) -> None:
        """Decode a request as soon as a slot and the memory that it needs are free (`Admission`).

        Raises:
            RuntimeError: the engine is closed.
        """
        self.admission.submit(request)

    def cancel(self, request: Request) -> None:
        """End a request before the next step; its tokens so far stay. Nothing happens if it has finished."""
        request.cancelled = self._cancelled = True

    def adopt(self, requests: Sequence[Request], first: Outputs) -> None:
        """Take requests whose prompts are in their slots.

        Args:
            requests: all that this loop decodes; their slots stay open at their ends.
            first: the logits after each prompt, as node 0.
        """
        self._enter(requests, first)
        self.active = retired(requests)

    def _enter(self, requests: Sequence[Request], first: Outputs) -> None:
        drafts = roots(requests)
        begin(requests, drafts, first)
        verify(requests, drafts)
        for request in requests:
            request.prefilled = request.prompt_length
            self._start(request)

    def step(self) -> bool:
        """One forward for all active requests. Returns whether any request is left.

        Raises:
            RuntimeError: another thread is in `step`, or the engine is closed.
            BaseException: what interrupts the step. It ends the requests that had a slot, with a `RuntimeError` that
                names it and holds no memory of the step; those that wait are decoded by later steps.
        """
        turn = object()
        try:
            self._begin(turn)
            if self._cancelled:
                self._cancelled = False
                self.admission.end_cancelled()
                self._retire()
            if self.admission:
                admitted = self.admission.admit()
                self.active += admitted
                self._undisturbed &= not admitted  # the model may be another one for them
                if admitted and (prefill := admitted[-1].prefill):
                    self._read_at_once(admitted[-1], prefill)
                    self.drafter.pause()  # the cost of its drafts is not known from the time of this step
                    self._retire()
            self._advance_all(planned(self.active, self.target, self.admission, self.step_tokens, self.reading))
            self._retire()
        except BaseException as error:
            if self._stepping is turn:
                self._abandon(error)
            raise
        finally:
            if self._stepping is turn:
                self._stepping = None
        return bool(self.active or self.admission)

    def _begin(self, turn: object) -> None:
        with self._lock:
            if self._stepping is not None:
                raise RuntimeError("step must be called by one thread at a time, got a second one")
            if self.admission.closed:
                raise RuntimeError("the engine must be open to step, got a closed one")
            self._stepping = turn

    def close(self) -> None:
        """End all requests and free their slots. A second call does nothing.

        Raises:
            RuntimeError: inside a step, which computes with the slots.
        """
        with self._lock:
            if self._stepping is not None:
                raise RuntimeError("close must be called between steps, got a call inside of one")
        self.admission.close()
        for request in self.active:
            request.cancelled = True
        self._retire()

    def _read_at_once(self, request: Request, prefill: Callable[[], Callable[[int], Outputs]]) -> None:
        """Read a prompt by a forward of its own, which may raise; that ends this request alone."""
        request.prefill = None  # it holds the images
        try:
            place = prefill()
        except Exception as error:  # noqa: BLE001 - the model's own: images may not fit to the text
            request.error, request.finished = error, True
            return
        self._enter([request], place(request.slot))

    def _advance_all(self, plan: StepPlan) -> None:
        undisturbed = all(request.undisturbed for request in self.active)
        self.target.undisturbed, self._undisturbed = undisturbed and self._undisturbed, undisturbed
        prompt_tokens = sum(map(len, plan.reading))
        self.reading.begin()
        for request in plan.outgrown:
            self._advance_alone(request)
        made = [self._advance(plan, *parts) for parts in plan.forwards(self.target.packed)]
        if not any(made):  # a device makes several steps in the time of one
            self.reading.end(len(plan.decoding), prompt_tokens)

    def _advance(self, plan: StepPlan, decoding: Sequence[Request], reading: Sequence[Chunk]) -> bool:
        """One forward. Returns whether the device had drafted it."""
        requests = [*decoding, *(chunk.request for chunk in reading)]
        slots = [request.slot for request in requests]
        drafting = plan.drafting if decoding else 0
        rounds = None if plan.unread or drafting < len(decoding) else self.rounds
        made = None if rounds is None else self._made(rounds, decoding)
        if made is None:
            drafts = [*(self._drafts(plan) if drafting else []), *roots(decoding[drafting:])]
            drafts += [chunk.draft() for chunk in reading]
            drafts, outputs = forward(self.target, requests, slots, drafts, self._one_pass)
        else:
            drafts, outputs = made
        verdicts = verify(requests, drafts)
        self.target.keep(slots, [verdict.path for verdict in verdicts])
        for request, draft, verdict in zip(decoding, drafts, verdicts, strict=False):
            request.tally.add(draft, verdict)
        if drafting:
            learn = self.drafter.observe if made is None else self._follower.learn
            learn(decoding[:drafting], drafts[:drafting], verdicts[:drafting], outputs)
        if reading:
            self._read(reading, outputs, first=len(decoding))
        if reading or drafting < len(decoding) or self.target.untimed:
            self.drafter.pause()  # the cost of its drafts is not known from its time
        if rounds is not None:
            rounds.ended(decoding)
        return made is not None

    def _made(self, rounds: Rounds, requests: Sequence[Request]) -> tuple[list[Draft], Outputs] | None:
        """A step that the device has made by itself."""
        found = rounds.next(requests)
        if found is not None:
            self._follower.follow(requests)
            begin(requests, *found)
        return found

    def _advance_alone(self, request: Request) -> None:
        """A forward without a draft, which may raise; that ends this request alone."""
        slots, drafts = [request.slot], roots([request])
        try:
            computed(self.target, [request], slots, drafts, self._one_pass)
        except Exception as error:  # noqa: BLE001 - the model's own
            request.error, request.finished = error, True
            return
        (verdict,) = verify([request], drafts)
        self.target.keep(slots, [verdict.path])

    def _drafts(self, plan: StepPlan) -> list[Draft]:
        """Of the requests that get drafts."""
        target, requests = self.target, plan.decoding[: plan.drafting]
        for request, nodes in zip(requests, self._max_nodes(plan), strict=False):
            request.max_nodes = nodes
        with target.clock.drafting():
            found = self.drafter.draft(requests, plan.depths[: plan.drafting])
            return [draft.within(target.vocabulary) for draft in found]

    def _max_nodes(self, plan: StepPlan) -> list[int]:
        """The most nodes of each row's tree: by the step's total, the model's positions and the slots' memory."""
        slots = [request.slot for request in plan.decoding]
        most = min(plan.max_nodes, self.target.max_nodes(slots))
        if self.admission.budget is None:
            return [most] * len(slots)
        within = self.admission.budget.max_nodes(slots, [len(request.tokens) - 1 for request in plan.decoding])
        return [min(most, nodes) for nodes in within]

    def _start(self, request: Request) -> None:
        """The request has its first token; from now on it gets drafts."""
        if request.drafts and not request.finished:
            self.drafter.start(request)

    def _read(self, chunks: Sequence[Chunk], outputs: Outputs, first: int) -> None:
        """Chunks of prompts are computed, as the rows from `first` on."""
        for row, chunk in enumerate(chunks, first):
            request = chunk.request
            if request.logprobs is not None and request.logprobs.reads_prompt:
                _score(request.logprobs, chunk, outputs, row)
            request.prefilled = chunk.end
            if not reads(request):
                self._start(request)

    def _abandon(self, error: BaseException) -> None:
        """End the requests of a step that was not completed: their texts, keys and values may not fit any more."""
        self._cancelled = True  # the next step lets go of what this call does not, should it be interrupted
        self.active = list(dict.fromkeys([*self.active, *self.admission.all_opened()]))
        for request in self.active:
            if not request.finished:
                request.error, request.finished = RuntimeError(f"a step was interrupted by {error!r}"), True
        self._retire(whole=False)
        self.drafter.pause()

    def _retire(self, whole: bool = True) -> None:
        """Let go of requests that have finished or were cancelled, whose slots hold their `whole` texts."""
        ended = [request for request in self.active if request.finished or request.cancelled]
        if not ended:
            return
        for request in ended:
            self.drafter.stop(request)
            self.admission.release(request, whole)
            end(request)
        self.active = retired(self.active)


def _score(logprobs: Logprobs, chunk: Chunk, outputs: Outputs, row: int) -> None:
    """Note the log probabilities of the prompt tokens that follow those of a chunk."""
    begin, text = chunk.request.prefilled, chunk.request.tokens[: chunk.request.prompt_length]
    following = text[begin + 1 : chunk.end + 1]
    if following:
        logprobs.read(outputs.of([outputs.lines[row][node] for node in range(len(following))]), following)
