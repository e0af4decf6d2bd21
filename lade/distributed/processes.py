"""How the processes of a run share a call: not at all, or the weights (tensor parallelism).

What differs is which drafter and which target a call gets. Errors end the call on all ranks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from lade.config.settings import Settings
from lade.core.drafter import Drafter
from lade.distributed.agreement import agree
from lade.distributed.errors import RankError
from lade.distributed.group import Group, drop, group_of
from lade.distributed.led import ComparedDrafter, LedDrafter, Nothing
from lade.drafters.factory import most_nodes
from lade.facts.fingerprint import configuration_key, fingerprint
from lade.facts.sharding import tensor_parallel
from lade.files.cachefolder import cache_folder
from lade.memory.warm.file import PREFIX
from lade.target.call import Call


class OneProcess:
    """A call of this process alone."""

    def drafter(self, make: Callable[[], Drafter], with_model: bool) -> Drafter:
        """The drafter of a call.

        Args:
            make: makes that of one process.
            with_model: whether a model drafts.
        """
        return make()


class TensorParallel(OneProcess):
    """A call of processes that hold a part of the weights each: rank 0 drafts, all compute and verify."""

    def __init__(self, group: Group, call: Call, settings: Settings) -> None:
        self.group, self.call, self.settings = group, call, settings

    def drafter(self, make: Callable[[], Drafter], with_model: bool) -> Drafter:
        if with_model:
            return ComparedDrafter(self.group, make())
        self._read_weights()
        rows = self.call.input_ids.shape[0]
        inner = make() if self.group.rank == 0 else Nothing()
        return LedDrafter(self.group, inner, rows, most_nodes(self.call.model, self.settings))

    def _read_weights(self) -> None:
        """The fingerprint, which all ranks compute together, where rank 0 has a warm table to look up by it."""
        if self.settings.mode != "auto" or "warm" not in self.settings.sources:
            return
        if self.group.broadcast_bytes(b"+" if self.group.rank == 0 and _may_have_table(self.call.model) else None):
            fingerprint(self.call.model)


def _may_have_table(model: Any) -> bool:
    """Whether the cache folder has a warm table for a model of this configuration."""
    try:
        return any(cache_folder().glob(f"{PREFIX}{configuration_key(model)}-*"))
    except OSError:
        return False


@contextlib.contextmanager
def processes(call: Call, settings: Settings) -> Iterator[OneProcess]:
    """In this scope the processes of a call share it; an error of one ends it on all of them.

    Raises:
        RankError: a rank has died, stalls or disagrees.
    """
    size = tensor_parallel(call.model)
    if size == 1 or not dist.is_initialized() or dist.get_world_size() != size:
        yield ONE
        return
    group = group_of(settings.timeout)
    try:
        agree(group, call, settings)
        with _limited(call.model, group.timeout):
            yield TensorParallel(group, call, settings)
    except BaseException as error:
        found = group.watch.blame(error) if _of_exchange(error) else error
        drop(found)
        if found is error:
            raise
        raise found from error
    group.watch.work()


ONE = OneProcess()


def _of_exchange(error: BaseException) -> bool:
    """Whether a collective of the model's forward has failed."""
    if isinstance(error, RankError) or not isinstance(error, RuntimeError):
        return False
    return isinstance(error, dist.DistError) or "gloo" in str(error)


@contextlib.contextmanager
def _limited(model: Any, timeout: float) -> Iterator[None]:
    """Collectives of the model's forwards fail after the timeout."""
    group, change = model._device_mesh["tp"].get_group(), dist.distributed_c10d._set_pg_timeout
    before = group._get_backend(model.device).options._timeout
    change(timedelta(seconds=timeout), group)
    try:
        yield
    finally:
        change(before, group)
