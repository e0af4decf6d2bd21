"""Triton's interpreter, made fast enough for tests. TRITON_INTERPRET must be set before triton is imported."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import triton
import triton.language as tl
from triton.runtime import interpreter

_patch: Callable[[Any], Any] = interpreter._patch_lang
_patched = False


def hasten() -> None:
    """Patch triton's language once per launch, where it is patched at every call in a kernel; ignore overflows."""
    interpreter._patch_lang = _patch_once
    builder = interpreter.interpreter_builder
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)


def _patch_once(function: object) -> Any:
    global _patched
    if _patched:
        return SimpleNamespace(restore=lambda: None)
    scope = _patch(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    _patched = True
    return SimpleNamespace(restore=lambda: _restore(scope))


def _restore(scope: Any) -> None:
    global _patched
    _patched = False
    scope.restore()


def chosen() -> bool:
    """Whether kernels that are imported from now on are interpreted."""
    return bool(triton.knobs.runtime.interpret)
