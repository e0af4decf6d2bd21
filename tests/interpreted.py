"""Triton's interpreter, made fast enough for tests, and made to round to bfloat16 as devices do.

TRITON_INTERPRET must be set before triton is imported.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import triton
import triton.language as tl
from triton.runtime import interpreter

_patch: Callable[[Any], Any] = interpreter._patch_lang
_convert: Callable[..., Any] = interpreter._convert_float
_patched = False


def hasten() -> None:
    """Patch triton's language once per launch, where it is patched at every call in a kernel; ignore overflows."""
    interpreter._patch_lang = _patch_once
    interpreter._convert_float = _convert_rounded
    builder = interpreter.interpreter_builder
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)


def _patch_once(function: object) -> Any:
    global _patched
    if _patched:
        return SimpleNamespace(restore=lambda: None)
    scope = _patch(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    tl.tensor.__index__ = _index
    _patched = True
    return SimpleNamespace(restore=lambda: _restore(scope))


def _index(tensor: tl.tensor) -> int:
    """Triton 3.6 makes a number of an array with an axis, which numpy 2.4 refuses."""
    return int(tensor.handle.data.item())


def _convert_rounded(states: Any, source: tl.dtype, to: tl.dtype, mode: object) -> Any:
    """Devices round float32 to the nearest bfloat16, and to the even one of two; the interpreter cuts bits off."""
    if (source, to) != (tl.float32, tl.bfloat16):
        return _convert(states, source, to, mode)
    bits = np.ascontiguousarray(states).view(np.uint32)
    rounded = (bits + (0x7FFF + (bits >> 16 & 1))) >> 16
    return np.where(np.isnan(states), 0x7FC0, rounded).astype(np.uint16)


def _restore(scope: Any) -> None:
    global _patched
    _patched = False
    scope.restore()


def chosen() -> bool:
    """Whether kernels that are imported from now on are interpreted."""
    return bool(triton.knobs.runtime.interpret)
