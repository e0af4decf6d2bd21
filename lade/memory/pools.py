"""What drafting learned, and who shares it: nobody by default, else the requests of one tenant on one model.

The boundary: a request reads and teaches one pool alone, the fresh one that its call was given or the shared one of its
own model and its own tenant; no function here joins two. Tenants are whoever may read each other's texts: drafts, and
with them speed and statistics, show what a pool was taught. A pool holds token ids of prompts and outputs, and so does
its file: keep it as those texts are kept. Pools change how many forwards a text takes, never the text.
Knows no request and no drafter at work.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from lade.base.arguments import check_model, check_path
from lade.base.locks import Lock, fork_safe_lock
from lade.base.shown import shown
from lade.base.wrappers import unwrapped
from lade.config.settings import CAPACITY, check_size
from lade.files.regularfile import naming
from lade.files.safefile import read, write
from lade.memory.calibration import Calibration
from lade.memory.poolfile import Contents, check_description, describe, pack, unpack
from lade.memory.recycle import TOP, PredictionTable
from lade.memory.sources import prior_calibration


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """What drafting learned. Whoever reads or changes a part holds the lock."""

    table: PredictionTable
    calibration: Calibration
    lock: Lock = field(default_factory=fork_safe_lock)


_pools: WeakKeyDictionary[Any, dict[str, Pool]] = WeakKeyDictionary()  # by model, then by tenant
_lock = fork_safe_lock()  # never held together with a pool's


def fresh_pool(capacity: int = CAPACITY) -> Pool:
    """An empty pool, for a call that shares with nobody.

    Args:
        capacity: contexts kept per length of context, 1 to 10,000,000. Where that many are known the half that was
            learned first is forgotten (`PredictionTable`).
    """
    _check_capacity(capacity)
    return Pool(PredictionTable(TOP, capacity), prior_calibration())


def shared_pool(model: Any, tenant: str, capacity: int | None = None) -> Pool:
    """The pool that the tenant's requests on this model share, made where there is none; gone with the model.

    Args:
        model: the model, or a wrapper (PEFT, torch.compile) around it.
        tenant: a name for those who may read each other's texts, not empty.
        capacity: as in `fresh_pool`, from now on; `None` leaves it. Every tenant takes room of its own, some hundred
            megabytes when full at the default: forget those who left (`drop_pools`).

    Raises:
        ValueError: names the argument.
    """
    _check_tenant(tenant)
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
    """Forget shared pools; calls that run keep theirs until they end.

    Args:
        model: whose pools; every model's where `None`.
        tenant: which of them; every tenant's where `None`.

    Raises:
        ValueError: names the argument.
    """
    if model is not None:
        check_model("model", model)
    if tenant is not None:
        _check_tenant(tenant)
    with _lock:
        models = list(_pools) if model is None else [unwrapped(model)]
        for each in models:
            if tenant is None:
                _pools.pop(each, None)
            else:
                _pools.get(each, {}).pop(tenant, None)


def save_pool(model: Any, path: str | os.PathLike[str], *, tenant: str = "default") -> None:
    """Write the tenant's pool to a safetensors file, in one step: who reads it meanwhile gets the old one.

    The file holds token ids of the tenant's texts.

    Raises:
        ValueError: names the argument; tenant has no pool on this model.
        OSError: the file cannot be written.
    """
    check_model("model", model)
    check_path("path", path)
    _check_tenant(tenant)
    with _lock:
        pool = _pools.get(unwrapped(model), {}).get(tenant)
    if pool is None:
        raise ValueError(f"tenant={tenant!r}: allowed is a tenant that has a pool on this model")
    write(Path(path), pack(_contents(pool)), describe(model))


def load_pool(
    model: Any, path: str | os.PathLike[str], *, tenant: str = "default", capacity: int | None = None
) -> None:
    """Let the tenant's pool hold what `save_pool` wrote, in place of what it held; nothing changes where this fails.

    A file is accepted for any model of the same type, vocabulary and size. Another one's predictions cost speed alone.

    Args:
        capacity: as in `shared_pool`; of more contexts than it allows, those that came first are left out.

    Raises:
        ValueError: names the argument; names the file that is not a pool, damaged, of another format or of another
            model, is no regular file, or cannot be read (`OSError` too; `FileNotFoundError` where it is not there).
    """
    check_model("model", model)
    check_path("path", path)
    _check_tenant(tenant)
    _check_capacity(capacity)
    contents = _load(Path(path), model)
    pool = shared_pool(model, tenant, capacity)
    with pool.lock:
        pool.table.old[:], pool.table.young[:] = contents.old, contents.young
        pool.table.resize(pool.table.capacity)
        pool.calibration.weights = contents.weights
        pool.calibration.seen = contents.seen


def _load(path: Path, model: Any) -> Contents:
    with naming(f"path={str(path)!r}"):
        tensors, metadata = read(path)
        check_description(metadata, model)
        return unpack(tensors, metadata, model)


def _contents(pool: Pool) -> Contents:
    """A copy that stays as it is; predictions are replaced, never changed."""
    with pool.lock:
        old, young = ([dict(table) for table in half] for half in (pool.table.old, pool.table.young))
        return Contents(old, young, *([*map(list, part)] for part in (pool.calibration.weights, pool.calibration.seen)))


def _check_tenant(tenant: str) -> None:
    if not isinstance(tenant, str) or not tenant:
        raise ValueError(f"tenant={shown(tenant)}: allowed is a name, a string that is not empty")


def _check_capacity(capacity: int | None) -> None:
    if capacity is not None:
        check_size("capacity", capacity, "pool_size")
