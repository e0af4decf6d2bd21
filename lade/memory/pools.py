"""Pools of what drafting learned, and who shares them: nobody by default, else the requests of one tenant and model.

Isolation: a request reads and updates one pool only, the fresh one of its call or the shared one of its own model and
tenant; no function here merges two. A tenant stands for users who may read each other's texts: drafts, and with them
speed and statistics, show what is in a pool. A pool and its file hold token ids of prompts and outputs: protect them as
those texts. Pools change the number of forwards of a text, never the text. Knows no request and no drafter.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from lade.base.arguments import check_model, check_path
from lade.base.locks import Lock, fork_safe_lock
from lade.base.shown import invalid
from lade.base.wrappers import unwrapped
from lade.config.settings import CAPACITY, check_size
from lade.files.regularfile import naming
from lade.files.safefile import read, write
from lade.memory.calibration import Calibration
from lade.memory.context import LENGTHS
from lade.memory.poolfile import Contents, check_description, describe, pack, unpack
from lade.memory.table import PredictionTable


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """What drafting learned. Hold the lock to read or change a part."""

    table: PredictionTable
    calibration: Calibration
    lock: Lock = field(default_factory=fork_safe_lock)


_pools: WeakKeyDictionary[Any, dict[str, Pool]] = WeakKeyDictionary()  # by model, then by tenant
_lock = fork_safe_lock()  # never held together with a pool's lock


def fresh_pool(capacity: int = CAPACITY) -> Pool:
    """An empty pool, for a call that shares with nobody.

    Args:
        capacity: contexts kept per length of context, 1 to 10,000,000. When it is full, the half that was learned first
            is dropped (`PredictionTable`).
    """
    _check_capacity(capacity)
    return Pool(PredictionTable(capacity), Calibration())


def shared_pool(model: Any, tenant: str, capacity: int | None = None) -> Pool:
    """The pool that the tenant's requests on this model share, made if there is none; it lives as long as the model.

    Args:
        model: the model, or a wrapper (PEFT, torch.compile) around it.
        tenant: a name for users who may read each other's texts, not empty.
        capacity: as in `fresh_pool`, from now on; `None` keeps the current one. Every tenant takes its own memory, some
            hundred megabytes when full at the default: drop unused ones (`drop_pools`).

    Raises:
        ValueError: names the argument.
    """
    check_tenant(tenant)
    _check_capacity(capacity)
    with _lock:
        tenants = _pools.setdefault(unwrapped(model), {})
        if tenant not in tenants:
            tenants[tenant] = fresh_pool()
        pool = tenants[tenant]
    if capacity is not None:
        with pool.lock:
            if pool.table.capacity != capacity:
                pool.table.resize(capacity)
    return pool


def drop_pools(model: Any = None, tenant: str | None = None) -> None:
    """Drop shared pools; running calls keep theirs until they end.

    An engine's keys and values of a tenant are dropped by `Engine.drop_prefixes`.

    Args:
        model: whose pools; every model's where `None`.
        tenant: which of them; every tenant's where `None`.

    Raises:
        ValueError: names the argument.
    """
    if model is not None:
        check_model("model", model)
    if tenant is not None:
        check_tenant(tenant)
    with _lock:
        models = list(_pools) if model is None else [unwrapped(model)]
        for each in models:
            if tenant is None:
                _pools.pop(each, None)
            else:
                _pools.get(each, {}).pop(tenant, None)


def save_pool(model: Any, path: str | os.PathLike[str], *, tenant: str = "default") -> None:
    """Write the tenant's pool to a safetensors file, atomically: concurrent readers get the old file.

    The file holds token ids of the tenant's texts.

    Raises:
        ValueError: names the argument; tenant has no pool on this model.
        OSError: the file cannot be written.
    """
    check_model("model", model)
    check_path("path", path)
    check_tenant(tenant)
    with _lock:
        pool = _pools.get(unwrapped(model), {}).get(tenant)
    if pool is None:
        raise invalid("tenant", "a tenant that has a pool on this model", tenant)
    write(Path(path), pack(_contents(pool)), describe(model))


def load_pool(
    model: Any, path: str | os.PathLike[str], *, tenant: str = "default", capacity: int | None = None
) -> None:
    """Replace the content of the tenant's pool by what `save_pool` wrote; nothing changes on an error.

    A file is accepted for any model of the same type, vocabulary and size. Predictions of another one cost speed only.

    Args:
        capacity: as in `shared_pool`; the oldest contexts beyond it are left out.

    Raises:
        ValueError: names the argument; names the file if it is not a pool, is damaged, of another format or another
            model, is no regular file, or cannot be read (`OSError` too; `FileNotFoundError` if it does not exist).
    """
    check_model("model", model)
    check_path("path", path)
    check_tenant(tenant)
    _check_capacity(capacity)
    contents = _load(Path(path), model)
    pool = shared_pool(model, tenant, capacity)
    with pool.lock:
        pool.table.replace(contents.rows)
        pool.table.resize(pool.table.capacity)
        pool.calibration.numbers[:] = contents.numbers


def _load(path: Path, model: Any) -> Contents:
    with naming(f"path={str(path)!r}"):
        tensors, metadata = read(path)
        check_description(metadata, model)
        return unpack(tensors, metadata, model)


def _contents(pool: Pool) -> Contents:
    """A copy."""
    with pool.lock:
        return Contents([pool.table.rows(length) for length in LENGTHS], pool.calibration.numbers.copy())


def check_tenant(tenant: str) -> None:
    """Strings that are not empty pass."""
    if not isinstance(tenant, str) or not tenant:
        raise invalid("tenant", "a string that is not empty", tenant)


def _check_capacity(capacity: int | None) -> None:
    if capacity is not None:
        check_size("capacity", capacity, "pool_size")
