"""Whether a function is transformers' own, or has its code: instruction for instruction, whatever its name."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

import torch
import transformers

from lade.target.patches import layers

OWN = tuple(str(Path(str(package.__file__)).parent) for package in (transformers, torch))  # where their files lie


def is_code_of(function: Any, other: Any) -> bool:
    """Whether two functions do the same to their arguments, if what they call does; without their decorators."""
    ours, theirs = getattr(function, "__code__", None), getattr(other, "__code__", None)
    return ours is not None and theirs is not None and _code(ours) == _code(theirs)


@functools.lru_cache(maxsize=256)
def is_stock(function: Callable[..., Any], *others: Callable[..., Any]) -> bool:
    """Whether a function stands in transformers' files and has the code of another one there, decorators included."""
    if not all(layer.__code__.co_filename.startswith(OWN) for layer in layers(function)):
        return False
    return any(_codes(function) == _codes(other) for other in others)


def _codes(function: Any) -> list[tuple[Any, ...]]:
    """Of a function and of what it decorates."""
    return [_code(layer.__code__) for layer in layers(function)]


def _code(code: CodeType) -> tuple[Any, ...]:
    """What a function does, without its documentation."""
    constants = tuple(constant for constant in code.co_consts if not isinstance(constant, str))
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, constants
