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
    """`step.core` for inputs of one size; compiled when it is first called, which takes up to minutes."""
    core: Core = compiled(step.core)

    def run(inputs: StepInputs) -> tuple[torch.Tensor, ...]:
        with step.attending(traced=True):
            return core(inputs)

    return run


def compiled(method: Any) -> Any:
    """A method for arguments of one shape; compiled when it is first called.

    It has code of its own: torch's compiler makes few versions of one code, and of none again what was dropped.
    """
    function = method.__func__
    parts = function.__globals__, function.__name__, function.__defaults__, function.__closure__
    own = FunctionType(function.__code__.replace(), *parts)
    return torch.compile(MethodType(own, method.__self__), fullgraph=True, dynamic=False, backend=BACKEND)
