"""Which rank has failed, from heartbeats: a store that is a dictionary, no clock but the thread's own interval."""

import threading
import time
from collections.abc import Iterator

import pytest

import lade
from lade.distributed.watch import WORKING, Watch, _Peer

TIMEOUT = 0.2  # seconds


class Store(dict[str, str]):
    """Of one process; heartbeats of stopped ranks do not change."""

    def set(self, key: str, value: str) -> None:
        self[key] = value

    def get(self, key: str) -> bytes:  # type: ignore[override]
        return self[key].encode()

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return [self.get(key) for key in keys]

    def check(self, keys: list[str]) -> bool:
        return all(key in self for key in keys)


@pytest.fixture
def watches() -> Iterator[list[Watch]]:
    store = Store()
    made = [Watch(store, rank, 3, TIMEOUT, "test") for rank in range(3)]
    joining = [threading.Thread(target=watch.join, args=(5.0,)) for watch in made]
    for thread in joining:
        thread.start()
    for thread in joining:
        thread.join()
    yield made
    for watch in made:
        watch.close()


def failure(watch: Watch, waited: float = 0.0) -> str:
    """What the watch says once it has an opinion."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        try:
            watch.check(waited)
        except lade.RankError as error:
            return str(error)
        threading.Event().wait(watch.interval / 4)
    raise AssertionError("no failure was found")


def seen(watch: Watch, rank: int, part: int, value: str) -> None:
    """Wait until a heartbeat of a rank has this part."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        peer = watch._peers.get(rank)
        if peer is not None and peer.beat.decode().split()[part] == value:
            return
        threading.Event().wait(watch.interval / 4)
    raise AssertionError("no such heartbeat")


def test_a_rank_without_heartbeats(watches: list[Watch]) -> None:
    watches[1].close()
    assert failure(watches[0]).startswith("rank 1 has died or stopped")
    assert failure(watches[2]).startswith("rank 1 has died or stopped")


def test_a_rank_that_says_why(watches: list[Watch]) -> None:
    watches[2].fail("rank 2 ended with ValueError('no')")
    assert failure(watches[0]) == "rank 2 ended with ValueError('no')"


def test_a_rank_that_stalls(watches: list[Watch]) -> None:
    """Its heart beats, but it begins no exchange; long work is allowed."""
    for watch in watches[:2]:
        watch.arrive()
    seen(watches[0], 1, 1, "1")
    watches[0].check(TIMEOUT / 2)
    assert failure(watches[0], 2 * TIMEOUT) == f"rank 2 stalled: no exchange for {TIMEOUT:g} s"
    watches[2].work()
    seen(watches[0], 2, 2, WORKING)
    watches[0].check(2 * TIMEOUT)


def test_a_rank_that_may_have_died() -> None:
    """Rank 2 is late because it waits for rank 1, whose heartbeats are missing."""
    watch, now = Watch(Store(), 0, 3, 60.0, "test"), time.monotonic()
    watch.arrive()
    watch._peers = {1: _Peer(b"5 1 stepping", now - 30.0), 2: _Peer(b"9 0 stepping", now)}
    watch.check(61.0)
    watch._peers[1].since = now
    with pytest.raises(lade.RankError, match="rank 2 stalled"):
        watch.check(61.0)


def test_an_exchange_that_failed() -> None:
    """The rank without heartbeats is named, even if it is not silent for the whole timeout yet."""
    watch, now = Watch(Store(), 0, 3, 0.01, "test"), time.monotonic()
    watch._looked = now + 60.0
    watch._peers = {1: _Peer(b"5 1 stepping", now - 3.0), 2: _Peer(b"9 0 stepping", now + 60.0)}
    assert str(watch.blame(RuntimeError("reset"))).startswith("rank 1 has died or stopped")


def test_a_rank_that_never_comes() -> None:
    watch = Watch(Store(), 0, 3, TIMEOUT, "test")
    with pytest.raises(lade.RankError, match=r"ranks 1, 2 must make the same call as rank 0"):
        watch.join(0.05)
