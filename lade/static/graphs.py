"""CUDA graphs of a static step, captured lazily, between steps, once per size. Elsewhere the step runs as it is."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from lade.base.locks import fork_safe_lock
from lade.base.seconds import least_seconds
from lade.kernels.sizes import MOST, program_tokens
from lade.static import fusing
from lade.static.fusing import Core
from lade.static.inputs import Size, StepInputs, StepRow, size_of
from lade.static.packing import Packing
from lade.static.readback import Readback
from lade.static.step import StaticStep

Output = tuple[torch.Tensor, torch.Tensor]  # of a step
WARM_UPS = 1  # runs before a capture, in which libraries load and choose their kernels
Found = TypeVar("Found")
_log = logging.getLogger(__name__)
_capturing = fork_safe_lock()  # one capture at a time: a second stream's calls would end it


@dataclass(slots=True)
class Sized:
    """A step of one size.

    Attributes:
        packing: of the inputs on the host.
        inputs: on the device, at an address that stays.
        run: computes the output from them.
        sent: a CUDA event after the last copy of them, which reads the host's memory when it runs.
    """

    packing: Packing
    inputs: StepInputs
    run: Callable[[], Output]
    sent: Any = None

    def send(self, rows: Sequence[StepRow]) -> None:
        """Copy the inputs of a step to the device."""
        if self.sent is not None and not self.sent.query():
            self.sent.synchronize()
        self.inputs.numbers.copy_(self.packing.fill(rows), non_blocking=True)
        if self.sent is not None:
            self.sent.record(torch.cuda.current_stream(self.inputs.numbers.device))


class Graphs:
    """The sizes of one step that were used. After a capture has failed, further sizes run as they are.

    Args:
        step: with slots of one capacity.
        fused: compile the step's core before it is captured, so that its small kernels become few. Takes up to minutes
            per size, and one slot. After that has failed, which the log says, further sizes are not.

    Raises:
        ValueError: fused, with several slots or a kernel.
    """

    def __init__(self, step: StaticStep, fused: bool = False) -> None:
        if fused:
            fusing.check(step)
        self.step, self.device, self.fused = step, step.slots.lengths.device, fused
        self.captures = self.device.type == "cuda"
        self.back = Readback(torch.cuda.Event() if self.captures else None)  # type: ignore[no-untyped-call]
        self.failure: str | None = None  # of a capture
        self.sizes: dict[Size, Sized] = {}
        self.loops: dict[Hashable, Any] = {}  # `lade.static.rounds.loop.DeviceLoop`s in the same slots, by their kind
        self.tables: Any = None  # `lade.static.rounds.tables.Tables`, which they share
        self._pool: Any = None  # of memory, shared by all graphs, of which one runs at a time

    def run(self, rows: Sequence[StepRow]) -> Output:
        """The step's output for these rows. The next step of its size overwrites it."""
        return self.replay(size_of(rows), rows)

    @torch.no_grad()
    def replay(self, size: Size, rows: Sequence[StepRow]) -> Output:
        """The same in a step of this size."""
        if size not in self.sizes:
            self.sizes[size] = self._made(size)
        sized = self.sizes[size]
        sized.send(rows)
        return sized.run()

    def belong(self, model: Any) -> None:
        """Compute with this model, which is that of before or `None`."""
        for step in (self.step, *(loop.step for loop in self.loops.values())):
            step.belong(model)

    def larger(self, tokens: int) -> Graphs:
        """Of the same step with larger slots, which hold what these hold; no size is made yet."""
        step = self.step.larger(tokens)
        return Graphs(step, self.fused)

    def _compute(self, inputs: StepInputs, core: Core) -> Output:
        self.step.begin(inputs)
        return self.step.end(inputs, core(inputs))

    def _made(self, size: Size) -> Sized:
        slots, on_cuda = self.step.slots, self.device.type == "cuda"
        packing = Packing(size, slots.spare, slots.capacity, pinned=on_cuda)
        inputs = StepInputs(torch.zeros(size.numbers, dtype=torch.long, device=self.device), size)
        sized = Sized(packing, inputs, lambda: self._compute(inputs, self.step.core))
        if on_cuda:
            sized.sent = torch.cuda.Event()  # type: ignore[no-untyped-call]
        if self.fused:
            self._fuse(sized)
        if self.captures:
            try:
                sized.run = self._captured(sized)
            except (RuntimeError, NotImplementedError) as error:
                self.captures, self.failure = False, f"{type(error).__name__}: {error}"
        return sized

    def _fuse(self, sized: Sized) -> None:
        """Compile the step on inputs that are all padding, so that no slot changes."""
        core = fusing.fused(self.step)
        sized.send([])
        try:
            self._compute(sized.inputs, core)
        except RuntimeError as error:
            self.fused = False
            _log.warning("lade: static steps are not fused: torch's compiler failed: %s", _told(error))
        else:
            sized.run = lambda: self._compute(sized.inputs, core)

    def _captured(self, sized: Sized) -> Callable[[], Output]:
        """Capture the step on inputs that are all padding, so that the runs before it change no slot."""
        sized.send([])
        step, nodes = self.step, len(sized.inputs.ids)
        if not step.chooses or nodes > MOST or program_tokens(nodes) in step.multiplies:
            return self._capture(sized)
        return self._faster(sized, program_tokens(nodes))

    def _faster(self, sized: Sized, tokens: int) -> Callable[[], Output]:
        """The faster one of two captures, without lade's products and with them; it decides for all steps of programs
        of so many tokens."""
        decided, runs = self.step.multiplies, dict[bool, Callable[[], Output]]()
        decided[tokens] = False
        runs[False] = self._capture(sized)
        decided[tokens] = True
        try:
            runs[True] = self._capture(sized)
        except Exception as error:  # noqa: BLE001 - of a compiler, say, for a device that nobody has tried
            _log.warning("lade: products of static steps are PyTorch's: %s", _told(error))
        decided[tokens] = min(runs, key=lambda own: least_seconds(runs[own], self.device))
        return runs[decided[tokens]]

    def _capture(self, sized: Sized) -> Callable[[], Output]:
        run, self._pool = capture(sized.run, self.device, self._pool)
        return run


def _told(error: Exception) -> str:
    """In one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def capture(compute: Callable[[], Found], device: torch.device, pool: Any = None) -> tuple[Callable[[], Found], Any]:
    """A function of a CUDA device as a graph, which is replayed; and the pool of memory that it uses.

    Args:
        pool: of other graphs, of which one runs at a time; `None` for a new one.
    """
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    with _capturing:
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                compute()
        torch.cuda.current_stream(device).wait_stream(stream)
        with _own_workspace(), torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            output = compute()

    def run() -> Found:
        graph.replay()
        return output

    return run, pool or graph.pool()


@contextlib.contextmanager
def _own_workspace() -> Iterator[None]:
    """What cuBLAS works in is taken from the memory of the graph that is captured inside, and left to it.

    cuBLAS keeps the memory that it was given before, one piece per stream. Graphs of torch.compile let go of all of
    it (`torch._inductor.cudagraph_trees.clear_cublas_manager`), so a graph that uses it would write to memory of
    others, or to none.
    """
    torch._C._cuda_clearCublasWorkspaces()
    try:
        yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()
