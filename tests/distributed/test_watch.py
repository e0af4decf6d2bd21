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


def failure(watch: Watch) -> str:
    """What the watch says once it has an opinion."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        try:
            watch.check()
        except lade.RankError as error:
            return str(error)
        threading.Event().wait(watch.interval / 4)
    raise AssertionError("no failure was found")


def test_a_rank_without_heartbeats(watches: list[Watch]) -> None:
    watches[1].close()
    assert failure(watches[0]).startswith("rank 1 has died or stopped")
    assert failure(watches[2]).startswith("rank 1 has died or stopped")


def test_a_rank_that_says_why(watches: list[Watch]) -> None:
    watches[2].fail("rank 2 ended with ValueError('no')")
    assert failure(watches[0]) == "rank 2 ended with ValueError('no')"


class Ranks:
    """Rank 0's watch over two others, by a clock of the test; its interval is half a second."""

    def __init__(self, host: int | None = None) -> None:
        self.now, self.beats = 0.0, 0
        self.store = Store({"test/failure": ""})
        self.watch = Watch(self.store, 0, 3, 5.0, "test", host, lambda: self.now)
        self.at = {1: "0 stepping 0", 2: "0 stepping 0"}

    def pass_by(self, seconds: float, looks: int, silent: int | None = None) -> None:
        """Time in which rank 0 looks so often, and each time finds a new heartbeat of all but one rank."""
        for _ in range(looks):
            self.now += seconds / looks
            self.beats += 1
            for rank, at in self.at.items():
                if rank != silent:
                    self.store[f"test/beat/{rank}"] = f"{self.beats} {at}"
            self.watch._look()


@pytest.fixture
def ranks() -> Ranks:
    made = Ranks()
    made.pass_by(0.5, 1)
    return made


def test_a_silent_rank(ranks: Ranks) -> None:
    ranks.pass_by(4.9, 10, silent=2)
    ranks.watch.check()
    ranks.pass_by(0.5, 1, silent=2)
    with pytest.raises(lade.RankError, match=r"rank 2 has died or stopped: no heartbeat for 5\.4 s"):
        ranks.watch.check()


def test_time_in_which_this_rank_did_not_run(ranks: Ranks) -> None:
    """A minute between two looks, or two waits, is no minute without a heartbeat, nor without an answer."""
    ranks.watch.arrive()
    ranks.watch.check()
    ranks.pass_by(60.0, 1, silent=1)
    ranks.pass_by(60.0, 1, silent=2)
    ranks.watch.check()
    ranks.now += 60.0
    ranks.watch.check()


@pytest.mark.parametrize(("host", "told"), [(None, "the store of the process group"), (1, "rank 1"), (0, None)])
def test_a_store_that_does_not_answer(host: int | None, told: str | None) -> None:
    """The thread that reads heartbeats waits for it; the store in this process itself cannot be unreachable."""
    ranks = Ranks(host)
    ranks.pass_by(0.5, 1)
    for _ in range(10):
        ranks.watch.check()
        ranks.now += 0.5
    ranks.now += 0.5
    if told is None:
        ranks.watch.check()
        return
    with pytest.raises(lade.RankError, match=rf"^{told} has not answered for 5 s"):
        ranks.watch.check()


def test_a_rank_that_stalls(ranks: Ranks) -> None:
    """Its heart beats, but it begins no exchange."""
    ranks.pass_by(60.0, 120)
    ranks.watch.arrive()
    ranks.at[1] = "1 stepping 0"
    ranks.pass_by(4.9, 10)
    ranks.watch.check()
    ranks.pass_by(0.5, 1)
    ranks.watch.check(exchanging=False)
    with pytest.raises(lade.RankError, match=r"^rank 2 stalled: no exchange for 5 s"):
        ranks.watch.check()


@pytest.mark.parametrize("at", [f"0 {WORKING} 0", None], ids=["long work", "steps alone"])
def test_ranks_that_are_alive(ranks: Ranks, at: str | None) -> None:
    """A rank may take long in its prefill, or make steps without an exchange."""
    ranks.watch.arrive()
    ranks.at[1] = "1 stepping 0"
    for step in range(30):
        ranks.at[2] = at or f"0 stepping {step}"
        ranks.pass_by(2.0, 4)
        ranks.watch.check()


def test_steps_and_work_are_told(ranks: Ranks) -> None:
    for begin, told in ((ranks.watch.work, "0 working 0"), (ranks.watch.step, "0 stepping 1")):
        begin()
        ranks.watch._beat(7)
        assert ranks.store["test/beat/0"] == f"7 {told}"


def test_a_rank_that_may_have_died(ranks: Ranks) -> None:
    """Rank 2 is late because it waits for rank 1, whose heartbeats are missing."""
    ranks.watch.arrive()
    ranks.at[1] = "1 stepping 0"
    ranks.pass_by(3.0, 6)
    ranks.pass_by(2.5, 5, silent=1)
    ranks.watch.check()
    ranks.pass_by(0.5, 1)
    with pytest.raises(lade.RankError, match="rank 2 stalled"):
        ranks.watch.check()


def test_an_exchange_that_failed() -> None:
    """The rank without heartbeats is named, even if it is not silent for the whole timeout yet."""
    watch = Watch(Store(), 0, 3, 0.01, "test")
    watch._looking.seconds = 60.0
    watch._peers = {1: _Peer(b"5 1 stepping 0", 57.0, 57.0), 2: _Peer(b"9 0 stepping 0", 60.0, 0.0)}
    watch._waiting.seconds = -60.0
    assert str(watch.blame(RuntimeError("reset"))).startswith("rank 1 has died or stopped")


def test_a_rank_that_never_comes() -> None:
    watch = Watch(Store(), 0, 3, TIMEOUT, "test")
    with pytest.raises(lade.RankError, match=r"ranks 1, 2 must make the same call as rank 0"):
        watch.join(0.05)
