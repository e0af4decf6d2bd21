"""Which sub-layers self-speculation leaves out, and the JSON file that `lade skip-search` keeps them in. No model."""

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
MOST = MEBIBYTE  # of a file


@dataclass(frozen=True, slots=True)
class SkipSet:
    """Decoder layers whose attention, and whose MLP, is left out; counted from 0.

    Raises:
        ValueError: names the field, its value and what is allowed.
    """

    attention: tuple[int, ...] = ()
    mlp: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("attention", "mlp"):
            value = getattr(self, name)
            right = isinstance(value, tuple) and all(type(layer) is int and layer >= 0 for layer in value)
            if not right or list(value) != sorted(set(value)):
                raise ValueError(f"layers.{name}={shown(value)}: allowed is a tuple of ascending numbers of layers")

    def check(self, layers: int) -> None:
        """ValueError where a model of so many layers has no such layer."""
        for name in ("attention", "mlp"):
            beyond = [layer for layer in getattr(self, name) if layer >= layers]
            if beyond:
                raise ValueError(f"layers.{name} holds layer {beyond[0]}: allowed are 0 to {layers - 1}")

    def __len__(self) -> int:
        return len(self.attention) + len(self.mlp)


def skip_set(layers: Any) -> SkipSet:
    """What a user may give: a `SkipSet`, a file that `lade skip-search` wrote, or (attention layers, MLP layers).

    Raises:
        ValueError: names `layers` or the file, which cannot be read or holds no skip set.
    """
    if isinstance(layers, SkipSet):
        return layers
    if isinstance(layers, str | os.PathLike):
        return read_skip_set(Path(layers))
    if isinstance(layers, tuple | list) and len(layers) == 2 and all(isinstance(part, tuple | list) for part in layers):
        return SkipSet(*(tuple(part) for part in layers))
    raise invalid("layers", "(attention layers, MLP layers), a lade.SkipSet, or a file's path", layers)


def read_skip_set(path: Path) -> SkipSet:
    """ValueError, which begins with the file's name, where it holds no skip set."""
    found = read_object(path, MOST, path)
    if found.get("format") != FORMAT or found.get("version") != VERSION:
        raise ValueError(f"{path}: is not a {FORMAT} of version {VERSION}")
    for name in ("attention", "mlp"):
        if not isinstance(found.get(name), list):
            raise ValueError(f"{path}: {name} must be a list of layers, got {shown(found.get(name))}")
    with naming(path):
        return SkipSet(*(tuple(found[name]) for name in ("attention", "mlp")))


def write_skip_set(path: Path, layers: SkipSet, measured: Mapping[str, Any]) -> None:
    """Write a file for `read_skip_set`, in one step; `measured` says what it was found on."""
    entry = {"format": FORMAT, "version": VERSION, "attention": layers.attention, "mlp": layers.mlp}
    put_in_place(path, (json.dumps(entry | {"measured": dict(measured)}, indent=2) + "\n").encode())
