"""Loops on PyTorch's threads: every unit of work is done once, whoever does it."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from forks import ends_in_a_child, needs_fork

from lade.base import threads
from lade.base.compiled import Linker, compiled
from lade.base.threads import FORK, UNITS, WORKERS, counters, spread, take, threads_for


@compiled
def count_units(counters, done):
    take(counters, WORKERS)
    unit = take(counters, UNITS)
    while unit < len(done):
        done[unit] += 1
        unit = take(counters, UNITS)


@compiled
def count(fork, number, counters, done):
    spread(fork, number, count_units, (counters, done))


def test_python_does_all_on_one_thread() -> None:
    done, taken = np.zeros(7, np.int64), counters()
    count(FORK, 3, taken, done)
    assert done.tolist() == [1] * 7
    assert taken.tolist() == [1, 8]


@pytest.mark.skipif(not FORK, reason="this PyTorch has no OpenMP of GNU's kind")
@pytest.mark.parametrize("number", [1, 2, 4])
def test_machine_code_shares_the_units(number: int, tmp_path: Path) -> None:
    pytest.importorskip("numba")
    machine = Linker(tmp_path).entry(count)
    for units in (0, 1, 1000):
        done, taken = np.zeros(units, np.int64), counters()
        machine(FORK, number, taken, done)
        assert (done == 1).all()
        assert taken.tolist() == [number, units + number]


def test_few_operations_are_for_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr(threads, "FORK", 1)
    assert [threads_for(number * threads.OPERATIONS) for number in (0, 1, 2, 9)] == [1, 2, 3, 4]
    monkeypatch.setattr(threads, "FORK", 0)
    assert threads_for(1 << 40) == 1


@needs_fork
def test_a_forked_process_has_no_further_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr(threads, "FORK", 1)

    def is_alone() -> None:
        assert threads_for(1 << 40) == 1

    assert ends_in_a_child(is_alone)
    assert threads_for(1 << 40) == 4


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have another OpenMP")
def test_pytorchs_threads_are_found() -> None:
    assert bool(FORK) == ("OpenMP" in torch.__config__.parallel_info())
