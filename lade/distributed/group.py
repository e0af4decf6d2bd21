"""The processes of a run: exchanges of integers on the host, which end with an error where a rank does not take part.

Uses a gloo group of its own, whatever the device, so that a failure leaves the user's groups alone. Knows no model.
"""

from __future__ import annotations

import atexit
import contextlib
import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from lade.base.locks import fork_safe_lock
from lade.base.shown import invalid
from lade.distributed.errors import RankError
from lade.distributed.watch import STEPPING, Watch

CREATION = 1800.0  # seconds within which all ranks must have begun their first call: a rank may load its model slowly
OF_GLOO = ("gloo", "pair closure")  # in its errors, which have no class of their own; the second after a timeout
UNBOUNDED = timedelta(days=7)  # of gloo's own timeout: the watch ends exchanges


class Group:
    """All processes of torch.distributed's default group.

    Attributes:
        rank: of this process.
        size: processes.
        exchanges: collectives so far.
        sent: bytes that this rank has sent in them.
        costs: of steps, by model.
        memories: of how steps were shared, by model.
    """

    def __init__(self, timeout: float, generation: int) -> None:
        self.rank, self.size, self.timeout = dist.get_rank(), dist.get_world_size(), timeout
        store = dist.distributed_c10d._get_default_store()
        hosted = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != str(True)
        self.watch = Watch(store, self.rank, self.size, timeout, f"lade/{generation}", 0 if hosted else None)
        self.exchanges = self.sent = 0
        self.costs: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        self.memories: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        self.watch.join(CREATION)
        self._group: Any = dist.new_group(backend="gloo", timeout=UNBOUNDED)

    def gather(self, mine: torch.Tensor, phase: str = STEPPING) -> torch.Tensor:
        """[N, *shape] the tensors of all ranks, of equal shapes, on the host."""
        found = mine.new_empty(self.size, *mine.shape)
        parts = list(found.unbind(0))
        self._exchange(lambda: dist.all_gather(parts, mine, group=self._group, async_op=True), mine, phase)
        return found

    def broadcast(self, buffer: torch.Tensor, source: int = 0) -> torch.Tensor:
        """The buffer of one rank, in that of every rank."""
        self._exchange(lambda: dist.broadcast(buffer, source, group=self._group, async_op=True), buffer, STEPPING)
        return buffer

    def add(self, buffer: torch.Tensor) -> torch.Tensor:
        """The sum of the buffers of all ranks, in that of every rank."""
        self._exchange(lambda: dist.all_reduce(buffer, group=self._group, async_op=True), buffer, STEPPING)
        return buffer

    def broadcast_bytes(self, data: bytes | None) -> bytes:
        """What rank 0 gives, of any length: two exchanges."""
        length = self.broadcast(torch.tensor([0 if data is None else len(data)]))
        if not int(length):
            return b""
        buffer = torch.empty(int(length), dtype=torch.uint8)
        if self.rank == 0 and data is not None:
            buffer.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        return self.broadcast(buffer).numpy().tobytes()

    def _exchange(self, begin: Callable[[], Any], tensor: torch.Tensor, phase: str) -> None:
        self.watch.arrive(phase)
        self.exchanges += 1
        self.sent += tensor.numel() * tensor.element_size()
        try:
            work = begin()
        except RuntimeError as error:
            raise self.watch.blame(error) from error
        self._wait(work)

    def _wait(self, work: Any) -> None:
        """Wait for a collective, and look after every interval whether a rank has failed."""
        interval = timedelta(seconds=self.watch.interval)
        while True:
            completed = work.is_completed()  # else the error may be the interval's end, even if it completes meanwhile
            try:
                work.wait(interval)
            except RuntimeError as error:
                if completed:
                    raise self.watch.blame(error) from error
                self.watch.check()
            else:
                return


_lock = fork_safe_lock()
_calling = fork_safe_lock()  # held during a call: the exchanges of two threads would be taken for each other's
_groups: dict[int, tuple[Any, Group]] = {}  # by process id: torch's default group, ours
_generation = 0  # groups made by this process, the same number on every rank


def group_of(timeout: float) -> Group:
    """The group of this process, made where there is none yet: collective then."""
    global _generation
    with _lock:
        default = dist.distributed_c10d._get_default_group()
        known = _groups.get(os.getpid())
        if known is not None and known[0] is default and known[1].timeout == timeout:
            return known[1]
        drop()
        _generation += 1
        made = Group(timeout, _generation)
        _groups[os.getpid()] = default, made
        return made


@contextlib.contextmanager
def one_call(timeout: float) -> Iterator[Group]:
    """The group, for one call of all ranks: other threads wait, and an error inside ends it on all ranks."""
    with _calling:
        group = group_of(timeout)
        try:
            yield group
        except BaseException as error:
            found = group.watch.blame(error) if _of_exchange(error) else error
            drop(found)
            if found is error:
                raise
            raise found from error
        group.watch.work()


def _of_exchange(error: BaseException) -> bool:
    """Whether a collective of the model's forward has failed."""
    if isinstance(error, RankError) or not isinstance(error, RuntimeError):
        return False
    return isinstance(error, dist.DistError) or any(words in str(error) for words in OF_GLOO)


def drop(error: BaseException | None = None) -> None:
    """Forget the group, after a call has ended with an error, which the other ranks are told."""
    with _lock:
        known = _groups.pop(os.getpid(), None)
        if known is None:
            return
        watch = known[1].watch
        if error is None:
            watch.close()
        else:
            watch.fail(str(error) if isinstance(error, RankError) else f"rank {watch.rank} ended with {error!r}")


atexit.register(drop)


def join(workers: int) -> None:
    """Begin torch.distributed where torchrun has started this process, and check the number of processes.

    Raises:
        ValueError: it is another than `workers`.
    """
    if not dist.is_available():
        raise invalid("DIST_WORKERS", "1, since this torch has no torch.distributed", workers)
    if not dist.is_initialized() and "WORLD_SIZE" in os.environ and "RANK" in os.environ:
        dist.init_process_group("gloo" if not torch.cuda.is_available() else None)
    size = dist.get_world_size() if dist.is_initialized() else 1
    if size != workers:
        hint = f"`torchrun --nproc-per-node {workers} ...` starts so many"
        raise ValueError(f"DIST_WORKERS must be the number of processes, {size}, got {workers} ({hint})")
