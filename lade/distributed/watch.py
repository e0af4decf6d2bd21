"""Heartbeats of the ranks in the store of the process group: which rank has died, stalled or ended with an error.

A thread writes a rank's heartbeat and reads those of the others, so that long work, such as a prefill, counts as being
alive. Time in which this process itself did not run, on a machine that does too much, does not count against others.
Knows keys and values, no tensors.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lade.distributed.errors import RankError

BEATS = 8  # heartbeats within the timeout, at least
LONGEST = 0.5  # seconds between two of them, at most
SILENT = 4  # intervals without a heartbeat after which a rank may be the cause of another's end
WORKING, STEPPING = "working", "stepping"  # in a prefill, which may take long; in steps


class Store(Protocol):
    """What is used of `torch.distributed.Store`."""

    def set(self, key: str, value: str) -> None: ...

    def multi_get(self, keys: list[str]) -> list[bytes]: ...

    def check(self, keys: list[str]) -> bool: ...


class OwnTime:
    """Seconds in which one thread ran or waited as it meant to: between two readings at most `most` seconds count."""

    def __init__(self, most: float, now: Callable[[], float] = time.monotonic) -> None:
        self._most, self._now = most, now
        self._read, self.seconds = now(), 0.0

    def __call__(self) -> float:
        now = self._now()
        self.seconds += min(now - self._read, self._most)
        self._read = now
        return self.seconds


@dataclass(slots=True)
class _Peer:
    """The latest heartbeat of a rank; when it came, and when the rank's exchanges and steps went on, as seen here."""

    beat: bytes
    since: float
    moved: float

    @property
    def at(self) -> list[bytes]:
        """Exchanges that it has begun, its phase, and steps without an exchange."""
        return self.beat.split()[1:]


class Watch:
    """The heartbeats of one process group.

    Args:
        store: of the process group.
        host: the rank whose process holds the store; `None` where another process does.
        timeout: seconds without a heartbeat after which a rank has died, and without an exchange after which it stalls.
        prefix: of the keys, the same on all ranks.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        timeout: float,
        prefix: str,
        host: int | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store, self.rank, self.timeout, self.host = store, rank, timeout, host
        self.interval = min(LONGEST, timeout / BEATS)
        self._others = [other for other in range(size) if other != rank]
        self._prefix, self._failed = prefix, f"{prefix}/failure"
        self._peers: dict[int, _Peer] = {}
        self._arrived, self._phase, self._steps = 0, STEPPING, 0
        self._begun = 0.0  # the last exchange
        self._looks, self._looking = 0, OwnTime(2 * self.interval, now)  # of the thread that reads heartbeats
        self._answered, self._waiting = (0, 0.0), OwnTime(2 * self.interval, now)  # looks, when an exchange saw them
        self._failure: str | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lade-heartbeat", daemon=True)

    def join(self, patience: float) -> None:
        """Begin, and wait until all ranks have.

        Raises:
            RankError: some have not after `patience` seconds.
        """
        if self.rank == 0:
            self.store.set(self._failed, "")
        self._beat(0)
        began = time.monotonic()
        while missing := [rank for rank in self._others if not self.store.check([self._key(rank)])]:
            if time.monotonic() - began > patience:
                raise RankError(f"{_named(missing)} must make the same call as rank {self.rank}, got no call in time")
            time.sleep(0.01)
        self._thread.start()

    def arrive(self, phase: str = STEPPING) -> None:
        """This rank begins an exchange; what follows is long work or steps."""
        self._arrived += 1
        self._phase, self._begun = phase, self._looking.seconds

    def step(self) -> None:
        """This rank begins a step without an exchange."""
        self._steps += 1
        self._phase = STEPPING

    def work(self) -> None:
        """This rank begins work that may take longer than the timeout."""
        self._phase = WORKING

    def fail(self, message: str) -> None:
        """Tell the other ranks that this one ends with an error."""
        self._failure = self._failure or message
        self._end(message)

    def close(self) -> None:
        """End the heartbeats."""
        self._end(None)

    def _end(self, message: str | None) -> None:
        if self._ended.is_set():
            return
        self._ended.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(self.interval * 2)
        if message is not None:  # in a thread of its own, as the store may be in a process that has stopped
            posting = threading.Thread(target=self._post, args=(message,), daemon=True)
            posting.start()
            posting.join(LONGEST)

    def _post(self, message: str) -> None:
        with contextlib.suppress(RuntimeError):  # the store may be gone with its process
            self.store.set(self._failed, message)

    def check(self, exchanging: bool = True) -> None:
        """RankError if a rank has failed, or keeps this one waiting in an exchange for longer than the timeout."""
        message = self._failure or self._unreachable() or (self._stalled() if exchanging else None)
        if message is not None:
            raise RankError(message)

    def blame(self, error: BaseException) -> RankError:
        """The error after an exchange has failed: waits until it is known which rank has died."""
        began = time.monotonic()
        while time.monotonic() - began < self.timeout + 2 * self.interval:
            try:
                self.check(exchanging=False)
            except RankError as found:
                return found
            time.sleep(self.interval / 4)
        if silent := self._silent():
            return RankError(_longest(silent))
        return RankError(f"the exchange with the other ranks failed: {error}")

    def _unreachable(self) -> str | None:
        now = self._waiting()
        if self._looks != self._answered[0]:
            self._answered = self._looks, now
        if now - self._answered[1] <= self.timeout or self.rank == self.host:
            return None
        where = "the store of the process group" if self.host is None else f"rank {self.host}"
        return f"{where} has not answered for {self.timeout:g} s"

    def _stalled(self) -> str | None:
        """None as long as a rank may have died: then the others wait for it, and it is named soon."""
        if self._silent():
            return None
        late = [rank for rank, peer in self._peers.items() if self._waits_for(peer)]
        if not late:
            return None
        return f"{_named(late)} stalled: no exchange for {self.timeout:g} s"

    def _waits_for(self, peer: _Peer) -> bool:
        """Whether a rank has not begun this rank's exchange, nor a step, for longer than the timeout."""
        arrived, phase, _ = peer.at
        behind = int(arrived) < self._arrived and phase.decode() == STEPPING
        return behind and self._looking.seconds - max(peer.moved, self._begun) > self.timeout

    def _run(self) -> None:
        count = 0
        while not self._ended.wait(self.interval):
            count += 1
            try:
                self._beat(count)
                self._look()
            except RuntimeError as error:  # of the store
                self._lost(error)
                return

    def _lost(self, error: RuntimeError) -> None:
        """The store is gone: with its process, which may have ended because of a rank that had died before."""
        silent = self._silent()
        if silent:
            self._failure = self._failure or _longest(silent)
        where = "the store of the process group is gone" if self.host is None else f"rank {self.host} has died"
        self._failure = self._failure or f"{where}: {str(error).splitlines()[0]}"

    def _silent(self) -> dict[int, float]:
        """Seconds without a heartbeat of the ranks that miss several."""
        now, most = self._looking.seconds, SILENT * self.interval
        return {rank: now - peer.since for rank, peer in self._peers.items() if now - peer.since > most}

    def _beat(self, count: int) -> None:
        self.store.set(self._key(self.rank), f"{count} {self._arrived} {self._phase} {self._steps}")

    def _look(self) -> None:
        *beats, failure = self.store.multi_get([*map(self._key, self._others), self._failed])
        now = self._looking()
        for rank, beat in zip(self._others, beats, strict=True):
            peer = self._peers.get(rank)
            if peer is None or peer.beat != beat:
                seen = _Peer(beat, now, now)
                if peer is not None and peer.at == seen.at:
                    seen.moved = peer.moved
                self._peers[rank] = seen
            elif now - peer.since > self.timeout:
                self._failure = self._failure or _dead(rank, now - peer.since)
                self._post(self._failure)
        self._failure = self._failure or failure.decode() or None
        self._looks += 1

    def _key(self, rank: int) -> str:
        return f"{self._prefix}/beat/{rank}"


def _dead(rank: int, seconds: float) -> str:
    return f"rank {rank} has died or stopped: no heartbeat for {seconds:.1f} s"


def _longest(silent: dict[int, float]) -> str:
    """What is said of the rank without a heartbeat for the longest."""
    rank = max(silent, key=silent.__getitem__)
    return _dead(rank, silent[rank])


def _named(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
