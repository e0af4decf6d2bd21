"""Warm tables by model: from this process's memory, from the cache folder, or computed and stored in both.

A table belongs to the weights whose fingerprint names its file. It holds token ids, whose meaning the weights fix; a
tokenizer counts only if it is given. `generate` calls `cached` alone.
"""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from lade.base.arguments import check_model, check_tokenizer
from lade.base.locks import fork_safe_lock
from lade.base.shown import invalid
from lade.base.wrappers import unwrapped
from lade.facts.fingerprint import is_state, weights_state
from lade.memory.warm.file import find, grown_file, load, store, table_file
from lade.memory.warm.part import PartFile
from lade.memory.warm.progress import progress_bar
from lade.memory.warm.table import Progress, WarmPart, check, compute, new_part, plan_of
from lade.memory.warm.turns import local_tokenizer
from lade.memory.warmtable import WarmTable

PATIENCE = 10.0  # seconds that a computation takes before an incomplete table is stored

__all__ = ["cached", "check", "compute", "table_file", "warm_up"]


@dataclass(frozen=True, slots=True)
class _Known:
    """A table in memory, the state of the weights and the tokenizer's hash that it was made for."""

    state: tuple[Any, ...]
    tokenizer: str
    table: WarmTable


_known: WeakKeyDictionary[Any, _Known] = WeakKeyDictionary()
_lock = fork_safe_lock()
_computing = fork_safe_lock()  # of all models: two at once would take as long, and equal ones share a file


def warm_up(model: Any, *, top: int = 16, tokenizer: Any = None, progress: Progress | None = None) -> WarmTable:
    """`lade.entry.warming.warm_up`, of the table alone."""
    check_arguments(model, top, tokenizer, progress)
    model = unwrapped(model)
    with _computing:
        table = cached(model, tokenizer=tokenizer)
        if table is None or table.kept < top or not table.complete:
            table = _loaded_or_computed(model, top, tokenizer, progress)
    return table


def check_arguments(model: Any, top: int, tokenizer: Any, progress: Progress | None) -> None:
    """ValueError names the argument of `warm_up` that is wrong."""
    check_model("model", model)
    check(model, top)
    check_tokenizer("tokenizer", tokenizer)
    if progress is not None and not callable(progress):
        raise invalid("progress", "a function of two integers, or None", progress)


def cached(model: Any, *, tokenizer: Any = None) -> WarmTable | None:
    """The table of these very weights, if there is one; runs no forward, and a broken file is no error.

    Reads the weights only if the cache folder has a table for this configuration, once per state of the weights.
    """
    model = unwrapped(model)
    vocabulary = _vocabulary_hash(tokenizer)
    with _lock:
        known = _known.get(model)
    if known is not None and not (_compatible(known.tokenizer, vocabulary) and is_state(model, known.state)):
        known = None
    if known is not None and known.table.complete:
        return known.table
    filed = _filed(model)
    if filed is not None and _compatible(filed.tokenizer, vocabulary):
        return _remembered(model, filed)
    return None if known is None else known.table


def own_table(model: Any, *, top: int = 16, tokenizer: Any = None) -> WarmTable:
    """The model's warm table without contexts of prompts: from the cache folder, else computed and stored."""
    model = unwrapped(model)
    with _computing:
        found = _read(model, table_file(model))
        fits = found is not None and found.table.complete and found.table.kept >= top
        if found is not None and fits and _compatible(found.tokenizer, _vocabulary_hash(tokenizer)):
            return found.table
        return _computed(model, top, tokenizer, None)


def store_grown(model: Any, table: WarmTable, tokenizer: Any = None) -> None:
    """Let calls and processes use a table with contexts of prompts."""
    model = unwrapped(model)
    store(grown_file(model), table, _vocabulary_hash(tokenizer), _name(model))
    use(model, table, tokenizer=tokenizer)


def use(model: Any, table: WarmTable, *, tokenizer: Any = None) -> None:
    """Let this process use a table of the model."""
    model = unwrapped(model)
    _remembered(model, _Known(weights_state(model), _vocabulary_hash(tokenizer), table))


def _filed(model: Any) -> _Known | None:
    """The best table of these very weights in the cache folder."""
    return next((found for path in find(model) if (found := _read(model, path)) is not None), None)


def _read(model: Any, path: Path) -> _Known | None:
    state = weights_state(model)
    loaded = load(path, model)
    return None if loaded is None else _Known(state, loaded[1], loaded[0])


def _loaded_or_computed(model: Any, top: int, tokenizer: Any, progress: Progress | None) -> WarmTable:
    """The file's table if it is complete and has enough tokens, else a new one with at least as many as the file's."""
    filed = _filed(model)
    fits = filed is not None and _compatible(filed.tokenizer, _vocabulary_hash(tokenizer))
    if filed is not None and fits and filed.table.complete and filed.table.kept >= top:
        return _remembered(model, filed)
    return _computed(model, top if filed is None else max(top, filed.table.kept), tokenizer, progress)


def _computed(model: Any, top: int, tokenizer: Any, progress: Progress | None) -> WarmTable:
    """A new table, stored in memory and on disk."""
    tokenizer = tokenizer if tokenizer is not None else local_tokenizer(model)
    path, vocabulary = table_file(model), _vocabulary_hash(tokenizer)
    with contextlib.nullcontext(progress) if progress is not None else progress_bar("warm table") as report:
        table = _resumed(model, top, tokenizer, report)
    state = weights_state(model)
    if table_file(model) != path:
        raise RuntimeError("model: its weights changed while the warm table was computed, so it was not kept")
    filed = _filed(model)  # another process may have been faster
    if filed is not None and filed.table.kept > table.kept and _compatible(filed.tokenizer, vocabulary):
        return _remembered(model, filed)
    store(path, table, vocabulary, _name(model))
    with contextlib.suppress(OSError):
        grown_file(model).unlink(missing_ok=True)
    return _remembered(model, _Known(state, vocabulary, table))


def _resumed(model: Any, top: int, tokenizer: Any, report: Progress) -> WarmTable:
    """The table, computed from where an interrupted computation ended; an interrupt of this one saves its part."""
    plan = plan_of(model, top, tokenizer=tokenizer)
    part_file = PartFile(model, plan)
    part, state = part_file.load() or new_part(plan), weights_state(model)

    def progress(done: int, total: int) -> None:
        part_file.save_periodically(part, done, total)
        report(done, total)

    def usable(part: WarmPart) -> None:
        if part.cost >= PATIENCE and weights_state(model) == state:
            _store_incomplete(model, part, _vocabulary_hash(tokenizer))

    try:
        table = compute(model, top, progress=progress, part=part, tokenizer=tokenizer, usable=usable)
    except BaseException:
        if weights_state(model) == state:
            part_file.save(part)
        raise
    part_file.remove()
    return table


def _store_incomplete(model: Any, part: WarmPart, vocabulary: str) -> None:
    """Let calls and processes use what is computed so far, unless they have a complete table."""
    filed = _filed(model)
    if filed is None or not filed.table.complete:
        table, state = part.table(complete=False), weights_state(model)
        store(table_file(model), table, vocabulary, _name(model))
        _remembered(model, _Known(state, vocabulary, table))


def _name(model: Any) -> str:
    """Where the model was loaded from; empty if it was not."""
    return str(getattr(model.config, "name_or_path", ""))


def _vocabulary_hash(tokenizer: Any) -> str:
    """A hash of the tokens and their ids; empty without a tokenizer."""
    if tokenizer is None:
        return ""
    entries = sorted(tokenizer.get_vocab().items(), key=lambda entry: (entry[1], entry[0]))
    return hashlib.blake2b(repr(entries).encode(errors="surrogatepass"), digest_size=16).hexdigest()


def _compatible(one: str, other: str) -> bool:
    """Whether two hashes of vocabularies are equal, or one is empty."""
    return not one or not other or one == other


def _remembered(model: Any, known: _Known) -> WarmTable:
    with _lock:
        _known[model] = known
    return known.table
