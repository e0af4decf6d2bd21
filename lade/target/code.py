"""Whether a function is transformers' own, or has its code: instruction for instruction, whatever its name."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import torch
import transformers

OWN = tuple(str(Path(str(package.__file__)).parent) for package in (transformers, torch))  # where their files lie


def is_code_of(function: Any, other: Any) -> bool:
    """Whether two functions do the same to their arguments, if what they call does; without their decorators."""
    ours, theirs = getattr(function, "__code__", None), getattr(other, "__code__", None)
    return ours is not None and theirs is not None and _code(ours) == _code(theirs)


@functools.lru_cache(maxsize=256)
def is_stock(function: Callable[..., Any], *others: Callable[..., Any]) -> bool:
    """Whether a function stands in transformers' files and has the code of another one there, decorators included."""
    own = [*_layers(function)]
    if not all(layer.co_filename.startswith(OWN) for layer in own):
        return False
    return any([_code(layer) for layer in own] == [_code(layer) for layer in _layers(other)] for other in others)


def _layers(function: Any) -> Iterator[CodeType]:
    """The code of a function and of what it decorates."""
    while function is not None:
        yield function.__code__
        function = getattr(function, "__wrapped__", None)


def _code(code: CodeType) -> tuple[Any, ...]:
    """What a function does, without its documentation."""
    constants = tuple(constant for constant in code.co_consts if not isinstance(constant, str))
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, constants
