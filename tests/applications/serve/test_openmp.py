"""The thread that loads a model leaves the cores to the one that decodes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TASKS = Path("/proc/self/task")
COMPUTED = """
import os, threading
import torch
from lade.applications.serve.openmp import release_threads

def compute():
    return torch.ones(1 << 20).exp().sum()

def tasks():
    return len(os.listdir("/proc/self/task"))

def tasks_once(expected):
    for _ in range(100_000):  # a thread that has ended is in the list a moment longer
        if tasks() == expected:
            break
        os.sched_yield()
    return tasks()

torch.set_num_threads(2)
before = tasks()
compute()
computed = tasks()
release_threads()
released = tasks_once(before)
found = []

def elsewhere():
    compute()
    found.append((tasks(), torch.get_num_threads()))

thread = threading.Thread(target=elsewhere)
thread.start()
thread.join()
print(computed - before, released - before, found[0][0] - before, found[0][1])
"""


@pytest.mark.skipif(not TASKS.is_dir(), reason="threads are counted in /proc")
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core needs no second thread")
def test_threads_end_and_another_one_gets_its_own() -> None:
    found = subprocess.run([sys.executable, "-c", COMPUTED], capture_output=True, text=True, check=True).stdout.split()
    computed, released, elsewhere, threads = map(int, found)
    assert computed == 1
    assert released == 0
    assert elsewhere == 2  # the thread, and one of OpenMP
    assert threads == 2
