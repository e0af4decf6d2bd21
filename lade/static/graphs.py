"""CUDA graphs of a static step, captured lazily, between steps, once per size. Elsewhere the step runs as it is."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from lade.base.locks import fork_safe_lock
from lade.kernels.rows import CHAIN
from lade.static.inputs import NEVER, UNASKED, StepInputs
from lade.static.step import StaticStep

Output = tuple[torch.Tensor, torch.Tensor]  # of a step
Size = tuple[int, int, int]  # buckets of nodes and of rows, words of ancestors
WARM_UPS = 2  # runs before a capture, in which libraries allocate their workspaces
_capturing = fork_safe_lock()  # one capture at a time: a second stream's calls would end it


@dataclass(slots=True)
class Sized:
    """A step of one size.

    Attributes:
        inputs: on the device, at an address that stays.
        run: computes the output from them.
    """

    inputs: StepInputs
    run: Callable[[], Output]


class Graphs:
    """The sizes of one step that were used.

    Args:
        step: with slots of one capacity.
        fused: compile the step before it is captured, so that its small kernels become few. Takes up to minutes per
            size, and one slot.

    Raises:
        ValueError: fused, with several slots.
    """

    def __init__(self, step: StaticStep, fused: bool = False) -> None:
        if fused and step.slots.count > 1:
            raise ValueError(f"step must have one slot to be fused, got {step.slots.count}")
        self.step, self.device = step, step.slots.lengths.device
        self._step = torch.compile(step, fullgraph=True, dynamic=False) if fused else step
        self.captures = self.device.type == "cuda"
        self.sizes: dict[Size, Sized] = {}
        self._pool: Any = None  # of memory, shared by all graphs, of which one runs at a time

    @torch.no_grad()
    def replay(self, size: Size, numbers: torch.Tensor) -> Output:
        """The step's output for these inputs, from the host. The next step of its size overwrites it."""
        if size not in self.sizes:
            self.sizes[size] = self._made(size)
        sized = self.sizes[size]
        if self.captures:
            numbers = numbers.pin_memory()
        sized.inputs.numbers.copy_(numbers, non_blocking=True)
        return sized.run()

    def _made(self, size: Size) -> Sized:
        inputs = StepInputs.empty(*size, self.device)
        if self.captures:
            try:
                return Sized(inputs, self._captured(inputs))
            except (RuntimeError, NotImplementedError) as error:
                self.captures = False
                warnings.warn(f"the model's step is not captured as a CUDA graph: {error}", stacklevel=2)
        return Sized(inputs, lambda: self._step(inputs))

    def _captured(self, inputs: StepInputs) -> Callable[[], Output]:
        """Capture the step on inputs that are all padding, so that the runs before it change no slot."""
        _pad(inputs, self.step.slots.spare)
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        with _capturing:
            stream.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(stream):
                for _ in range(WARM_UPS):
                    self._step(inputs)
            torch.cuda.current_stream(self.device).wait_stream(stream)
            with torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"):
                output = self._step(inputs)
        self._pool = self._pool or graph.pool()

        def run() -> Output:
            graph.replay()
            return output

        return run


def _pad(inputs: StepInputs, spare: int) -> None:
    """Make every node and row padding."""
    inputs.numbers.zero_()
    inputs.slots.fill_(spare)
    inputs.rows.fill_(spare)
    inputs.trees.fill_(CHAIN)
    count = torch.arange(len(inputs.ids), device=inputs.ids.device)
    inputs.indices.copy_(count)
    inputs.parents.copy_(count)
    inputs.claims.fill_(NEVER)
    inputs.orders.fill_(UNASKED)
