"""Where warm tables come from: this process's memory, the user's cache folder, or computing one and keeping it in both.

A table holds for the weights whose fingerprint its file is named by. Token ids are what it is about, and the weights
fix what they mean; a tokenizer counts only where it is handed in. Of all this, `generate` calls `cached` alone.
"""

from __future__ import annotations

import hashlib
import math
import threading
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch

import lade
from lade.fingerprint import configuration_key, fingerprint, weights_state
from lade.safefile import cache_folder, read, write
from lade.warmtable import Progress, WarmTable, check, compute, vocabulary_size

__all__ = ["CacheWarning", "WarmTable", "cached", "compute", "fingerprint", "table_file", "warm_up"]

FORMAT = "1"
PREFIX = f"warm{FORMAT}-"


class CacheWarning(UserWarning):
    """A file in the cache folder is ignored, or a table could not be kept there; the message says why."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A table in memory, and what it was made for."""

    state: tuple[Any, ...]
    tokenizer: str
    table: WarmTable


_known: WeakKeyDictionary[Any, _Known] = WeakKeyDictionary()
_ignored: set[tuple[Any, ...]] = set()  # the states of the files that were warned of
_lock = threading.Lock()


def warm_up(model: Any, *, top: int = 16, tokenizer: Any = None, progress: Progress | None = None) -> WarmTable:
    """The model's warm table: from memory or the cache folder, else computed and kept in both.

    Args:
        model: a causal language model of transformers; it is left as it was.
        top: how many tokens to keep per entry at least.
        tokenizer: where given, a table that was made with another vocabulary does not count.
        progress: called with how many entries are done, and of how many.

    Raises:
        ValueError: names the argument.
    """
    check(model, top)
    table = cached(model, tokenizer=tokenizer)
    if table is None or table.tokens.shape[1] < top:
        state = weights_state(model)
        path = table_file(model)
        table = compute(model, top, progress=progress)
        _store(path, table, _vocabulary_hash(tokenizer))
        _remember(model, state, table, _vocabulary_hash(tokenizer))
    return table


def cached(model: Any, *, tokenizer: Any = None) -> WarmTable | None:
    """The table that was made for this very model, if there is one; no forward, and no error for a broken file.

    The weights are read only where the cache folder has a table for this configuration, once per state of the weights.
    """
    vocabulary = _vocabulary_hash(tokenizer)
    with _lock:
        known = _known.get(model)
    if known is not None and _agree(known.tokenizer, vocabulary) and known.state == weights_state(model):
        return known.table
    path = _find(model)
    if path is None:
        return None
    state = weights_state(model)
    loaded = _load(path, model)
    if loaded is None or not _agree(loaded[1], vocabulary):
        return None
    _remember(model, state, *loaded)
    return loaded[0]


def table_file(model: Any) -> Path:
    """Where this model's table is kept."""
    return cache_folder() / f"{PREFIX}{configuration_key(model)}-{fingerprint(model)}.safetensors"


def _vocabulary_hash(tokenizer: Any) -> str:
    """Of which token has which id; empty without a tokenizer."""
    if tokenizer is None:
        return ""
    entries = sorted(tokenizer.get_vocab().items(), key=lambda entry: (entry[1], entry[0]))
    return hashlib.blake2b(repr(entries).encode(errors="surrogatepass"), digest_size=16).hexdigest()


def _agree(one: str, other: str) -> bool:
    """Whether two hashes of vocabularies do not speak against each other."""
    return not one or not other or one == other


def _remember(model: Any, state: tuple[Any, ...], table: WarmTable, tokenizer: str) -> None:
    with _lock:
        _known[model] = _Known(state, tokenizer, table)


def _find(model: Any) -> Path | None:
    """Where the model's file would be; the weights are read only where there is a file of this configuration."""
    try:
        folder = cache_folder()
        if not any(folder.glob(f"{PREFIX}*")) or not any(folder.glob(f"{PREFIX}{configuration_key(model)}-*")):
            return None
        return table_file(model)
    except (OSError, ValueError):  # a folder that cannot be read; weights without data, which have no fingerprint
        return None


def _load(path: Path, model: Any) -> tuple[WarmTable, str] | None:
    """The table and its tokenizer's hash, or `None` behind one warning per broken file."""
    state = _file_state(path)
    if state is None or state in _ignored:
        return None
    try:
        return _parsed(*read(path), model)
    except (OSError, ValueError) as error:
        _ignored.add(state)
        warnings.warn(f"lade ignores {path}: {error}", CacheWarning, stacklevel=3)
        return None


def _file_state(path: Path) -> tuple[Any, ...] | None:
    """Differs once the file was replaced; `None` where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return path, found.st_ino, found.st_mtime_ns, found.st_size


def _parsed(tensors: dict[str, torch.Tensor], metadata: dict[str, str], model: Any) -> tuple[WarmTable, str]:
    """ValueError where this is not the model's table."""
    if metadata.get("format") != FORMAT or metadata.get("fingerprint") != fingerprint(model):
        raise ValueError("it is not this model's table")
    if set(tensors) != {"tokens", "probabilities"}:
        raise ValueError(f"it holds {sorted(tensors)}")
    tokens, probabilities = tensors["tokens"], tensors["probabilities"]
    size = vocabulary_size(model)
    shaped = tokens.shape == probabilities.shape and tokens.dim() == 2 and len(tokens) == size and tokens.shape[1] > 0
    if not shaped or tokens.dtype != torch.int32 or probabilities.dtype != torch.float32:
        raise ValueError("its tensors have the wrong shapes or dtypes")
    seconds = float(metadata.get("seconds", "nan"))
    if not math.isfinite(seconds):
        raise ValueError("it does not say what the table cost")
    return WarmTable(tokens, probabilities, seconds), metadata.get("tokenizer", "")


def _store(path: Path, table: WarmTable, tokenizer: str) -> None:
    metadata = {
        "format": FORMAT,
        "fingerprint": path.stem.rsplit("-", 1)[1],
        "seconds": repr(table.seconds),
        "tokenizer": tokenizer,
        "lade": lade.__version__,
    }
    try:
        write(path, {"tokens": table.tokens, "probabilities": table.probabilities}, metadata)
    except OSError as error:
        warnings.warn(f"lade keeps the warm table in memory only: {error}", CacheWarning, stacklevel=3)
