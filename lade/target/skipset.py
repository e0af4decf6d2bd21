"""The sub-layers that self-speculation skips, and the JSON file of `lade skip-search`. Knows no model."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lade.base.shown import invalid, shown
from lade.files.atomic import put_in_place
from lade.files.jsonobject import read_object
from lade.files.regularfile import MEBIBYTE, naming

FORMAT = "lade skip set"
VERSION = 1
MOST = MEBIBYTE  # size of a file


@dataclass(frozen=True, slots=True)
class SkipSet:
    """Decoder layers whose attention or MLP is skipped, counted from 0.

    Attributes:
        attention, mlp: ascending layer numbers.

    Raises:
        ValueError: a field is not a tuple of ascending integers of at least 0.
    """

    attention: tuple[int, ...] = ()
    mlp: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("attention", "mlp"):
            value = getattr(self, name)
            right = isinstance(value, tuple) and all(type(layer) is int and layer >= 0 for layer in value)
            if not right or list(value) != sorted(set(value)):
                raise invalid(f"layers.{name}", "a tuple of ascending layer numbers", value)

    def check(self, layers: int) -> None:
        """ValueError if a model with `layers` layers lacks one of these."""
        for name in ("attention", "mlp"):
            beyond = [layer for layer in getattr(self, name) if layer >= layers]
            if beyond:
                raise invalid(f"layers.{name}", f"layers from 0 to {layers - 1}", getattr(self, name))

    def __len__(self) -> int:
        return len(self.attention) + len(self.mlp)


def skip_set(layers: Any) -> SkipSet:
    """A skip set from what users pass: a `SkipSet`, a file of `lade skip-search`, or (attention layers, MLP layers).

    Raises:
        ValueError: `layers` is none of these, or the file cannot be read or holds no skip set.
    """
    if isinstance(layers, SkipSet):
        return layers
    if isinstance(layers, str | os.PathLike):
        return read_skip_set(Path(layers))
    if isinstance(layers, tuple | list) and len(layers) == 2 and all(isinstance(part, tuple | list) for part in layers):
        return SkipSet(*(tuple(part) for part in layers))
    raise invalid("layers", "(attention layers, MLP layers), a lade.SkipSet, or a file's path", layers)


def read_skip_set(path: Path) -> SkipSet:
    """Read a file of `write_skip_set`; a ValueError about it begins with its path."""
    found = read_object(path, MOST, path)
    if found.get("format") != FORMAT or found.get("version") != VERSION:
        raise ValueError(f"{path}: is not a {FORMAT} of version {VERSION}")
    for name in ("attention", "mlp"):
        if not isinstance(found.get(name), list):
            raise ValueError(f"{path}: {name} must be a list of layers, got {shown(found.get(name))}")
    with naming(path):
        return SkipSet(*(tuple(found[name]) for name in ("attention", "mlp")))


def write_skip_set(path: Path, layers: SkipSet, measured: Mapping[str, Any]) -> None:
    """Write a file for `read_skip_set`, atomically.

    Args:
        measured: how the set was found, for readers of the file.
    """
    entry = {"format": FORMAT, "version": VERSION, "attention": layers.attention, "mlp": layers.mlp}
    put_in_place(path, (json.dumps(entry | {"measured": dict(measured)}, indent=2) + "\n").encode())
