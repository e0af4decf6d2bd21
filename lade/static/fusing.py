"""The core of a static step as torch's compiler makes it: its small kernels become few. For one slot, with masks."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

import torch

from lade.static.inputs import StepInputs
from lade.static.step import StaticStep

BACKEND: Any = "inductor"  # of torch's compiler
Core = Callable[[StepInputs], tuple[torch.Tensor, ...]]


def check(step: StaticStep) -> None:
    """Steps that can be fused pass."""
    if step.slots.count > 1:
        raise ValueError(f"step must have one slot to be fused, got {step.slots.count}")
    if step.kernel is not None:
        raise ValueError("step must have no kernel to be fused, got one")


def fused(step: StaticStep) -> Core:
    """`step.core` for inputs of one size; compiled when it is first called, which takes up to minutes.

    It has code of its own: torch's compiler makes few versions of one code, and of none again what was dropped.
    """
    core: Any = type(step).core
    parts = core.__globals__, core.__name__, core.__defaults__, core.__closure__
    own = FunctionType(core.__code__.replace(), *parts)
    compiled: Core = torch.compile(MethodType(own, step), fullgraph=True, dynamic=False, backend=BACKEND)

    def run(inputs: StepInputs) -> tuple[torch.Tensor, ...]:
        with step.attending(traced=True):
            return compiled(inputs)

    return run
