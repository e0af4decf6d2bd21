"""Measuring memory: the peak is of what came after the reset. The whole job is tested with the command."""

import pytest
import torch

from lade.applications.bench.memory import CLEAR_PEAK, MemoryJob, MemoryResult, measure_once, peak, reset_peak

CPU = torch.device("cpu")
MEGABYTE = 1_000_000


@pytest.mark.skipif(not CLEAR_PEAK.exists(), reason="this system cannot set a process's peak back")
def test_the_peak_counts_what_was_freed_again_and_forgets_what_was_before_the_reset() -> None:
    torch.ones(50 * MEGABYTE)  # 200 MB
    before = reset_peak(CPU)
    torch.ones(16 * MEGABYTE)  # 64 MB
    assert 60 * MEGABYTE < peak(CPU) - before < 150 * MEGABYTE


def test_what_decoding_used_is_over_the_loaded_model() -> None:
    assert MemoryResult("plain", loaded=5, peak=9, new_tokens=1, fallback=None).used == 4


@pytest.mark.slow
def test_a_process_that_fails_is_quoted() -> None:
    job = MemoryJob(model="", label="warp", options={}, context=1, max_new_tokens=1, threads=1, seed=0, loading={})
    with pytest.raises(ChildProcessError, match="'warp' failed with status 1: unknown method 'warp'"):
        measure_once(job)
