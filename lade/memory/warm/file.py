"""A warm table's file in the cache folder, named by the fingerprint of its model.

Broken and foreign files are ignored with a warning, and so is a folder that cannot be written to. Caches no table.
"""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import torch

from lade.base.shown import shown
from lade.base.version import VERSION
from lade.base.wrappers import unwrapped
from lade.facts.fingerprint import configuration_key, fingerprint
from lade.facts.vocabulary import readable
from lade.files.cachecontent import mark_used, trim
from lade.files.cachefolder import CacheWarning, NotKeptWarning, cache_folder
from lade.files.regularfile import MEBIBYTE, naming
from lade.files.safefile import read, write
from lade.memory.context import CONTEXT, NOTHING
from lade.memory.warmtable import WarmContexts, WarmTable

FORMAT = "3"
PREFIX = f"warm{FORMAT}-"
GROWN = "-prompts"  # ends the name of a table with contexts of a user's prompts, which stands beside the model's own
PARTS = ("endings", "tokens", "probabilities")  # of the contexts
MOST = 2048 * MEBIBYTE  # of a file: 256,000 entries with 900 tokens each
NAMES = {"tokens", "probabilities"} | {f"contexts.{part}" for part in PARTS}

_ignored: set[tuple[Any, ...]] = set()  # states of the files that a warning named


def table_file(model: Any) -> Path:
    """The path of this model's table."""
    model = unwrapped(model)
    return cache_folder() / f"{PREFIX}{configuration_key(model)}-{fingerprint(model)}.safetensors"


def grown_file(model: Any) -> Path:
    """The path of this model's table with contexts of a user's prompts."""
    own = table_file(model)
    return own.with_stem(own.stem + GROWN)


def find(model: Any) -> list[Path]:
    """The paths of the model's tables, the best first; none, without reading the weights, if none is there."""
    try:
        folder = cache_folder()
        if not any(folder.glob("warm[0-9]*-*")):
            return []
        key = configuration_key(model)
        if any(folder.glob(f"{PREFIX}{key}-*")):
            return [grown_file(model), table_file(model)]
        _warn_of_older(sorted(folder.glob(f"warm[0-9]*-{key}-*")))
        return []
    except (OSError, ValueError):  # a folder that cannot be read; weights without data, which have no fingerprint
        return []


def _warn_of_older(tables: list[Path]) -> None:
    """One warning for tables that another version of lade made, once per file."""
    fresh = [path for path in tables if (path,) not in _ignored]
    if fresh:
        _ignored.update((path,) for path in fresh)
        warnings.warn(
            f"lade ignores {fresh[-1]}: its format must be {FORMAT}; `lade warm` computes a new table",
            CacheWarning,
            stacklevel=3,
        )


def load(path: Path, model: Any) -> tuple[WarmTable, str] | None:
    """The table and its tokenizer's hash, or `None`; warns once per broken file."""
    state = _file_state(path)
    if state is None or state in _ignored:
        return None
    try:
        found = _parsed(*read(path, MOST), model)
        mark_used(path)
        return found
    except (OSError, ValueError) as error:
        _ignored.add(state)
        warnings.warn(f"lade ignores {path}: {error}", CacheWarning, stacklevel=3)
        return None


def _file_state(path: Path) -> tuple[Any, ...] | None:
    """A value that changes when the file is replaced; `None` if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return path, found.st_ino, found.st_mtime_ns, found.st_size


def _parsed(tensors: dict[str, torch.Tensor], metadata: dict[str, str], model: Any) -> tuple[WarmTable, str]:
    """ValueError if this is not the model's table."""
    if metadata.get("format") != FORMAT or metadata.get("fingerprint") != fingerprint(model):
        raise ValueError("it is not this model's table")
    return _table(tensors, metadata, readable(model)), metadata.get("tokenizer", "")


def load_named(path: Path, vocabulary: int) -> WarmTable:
    """The table of a file that the user names, for any model of this vocabulary.

    Raises:
        ValueError: names the file if it is no such table, or cannot be read.
    """
    with naming(str(path)):
        tensors, metadata = read(path, MOST)
        if metadata.get("format") != FORMAT:
            raise ValueError(f"it must be a warm table of format {FORMAT}")
        return _table(tensors, metadata, vocabulary)


def _table(tensors: dict[str, torch.Tensor], metadata: dict[str, str], size: int) -> WarmTable:
    """ValueError if this is no table of a vocabulary of this size."""
    if set(tensors) != NAMES:
        raise ValueError(f"its tensors must be {sorted(NAMES)}, got {shown(sorted(tensors))}")
    entries = tensors["tokens"], tensors["probabilities"]
    contexts = WarmContexts(*(tensors[f"contexts.{part}"] for part in PARTS))
    kept = entries[0].shape[-1] if entries[0].dim() else 0
    _check(*entries, (size, kept), size)
    endings = contexts.endings
    if endings.dim() != 2 or endings.shape[1] != CONTEXT or endings.dtype != torch.int32:
        raise ValueError("its contexts have the wrong shape or dtype")
    _check(contexts.tokens, contexts.probabilities, (len(endings), kept), size)
    if not ((endings >= NOTHING) & (endings < size)).all() or not (endings[:, -1] >= 0).all():
        raise ValueError("its contexts must hold token ids of the model")
    seconds = float(metadata.get("seconds", "nan"))
    if not math.isfinite(seconds):
        raise ValueError("its seconds must be a finite number")
    complete, prompts = metadata.get("complete") == str(True), metadata.get("prompts", "")
    return WarmTable(*entries, contexts, seconds, complete, prompts)


def _check(tokens: torch.Tensor, probabilities: torch.Tensor, shape: tuple[int, ...], vocabulary: int) -> None:
    """ValueError if these are no predictions of this shape, whose last size is k."""
    shaped = tuple(tokens.shape) == tuple(probabilities.shape) == shape and shape[-1] > 0
    if not shaped or tokens.dtype != torch.int32 or probabilities.dtype != torch.float32:
        raise ValueError("its tensors have the wrong shapes or dtypes")
    if not ((tokens >= 0) & (tokens < vocabulary)).all() or not ((probabilities >= 0) & (probabilities <= 1)).all():
        raise ValueError("it must hold token ids of the model and probabilities")


def store(path: Path, table: WarmTable, tokenizer: str, model_name: str = "") -> None:
    metadata = {
        "format": FORMAT,
        "fingerprint": path.stem.removesuffix(GROWN).rsplit("-", 1)[1],
        "seconds": repr(table.seconds),
        "tokenizer": tokenizer,
        "complete": str(table.complete),
        "prompts": table.prompts,
        "lade": VERSION,
        "model": model_name,
    }
    try:
        contexts = {f"contexts.{part}": getattr(table.contexts, part) for part in PARTS}
        write(path, {"tokens": table.tokens, "probabilities": table.probabilities} | contexts, metadata, MOST)
        trim(path)
    except OSError as error:
        warnings.warn(f"lade keeps the warm table in memory only: {error}", NotKeptWarning, stacklevel=3)
