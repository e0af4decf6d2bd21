"""Measuring memory: the peak is of what came after the reset. The whole job is tested with the command."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch
from forks import needs_fork

from lade.applications.bench import memory
from lade.applications.bench.bench import Bench, Grid
from lade.applications.bench.contenders import contenders
from lade.applications.bench.memory import (
    CLEAR_PEAK,
    DEFAULT_CONTEXT,
    MemoryJob,
    MemoryResult,
    check_peak,
    context_for,
    measure_once,
    peak,
    reset_peak,
)
from lade.applications.bench.memory_report import bench_memory
from lade.applications.bench.methods import MethodOptions
from lade.applications.bench.task import RunOptions

CPU = torch.device("cpu")
MEGABYTE = 1_000_000


@pytest.mark.skipif(not CLEAR_PEAK.exists(), reason="this system cannot set a process's peak back")
def test_the_peak_counts_what_was_freed_again_and_forgets_what_was_before_the_reset() -> None:
    torch.ones(50 * MEGABYTE)  # 200 MB
    before = reset_peak(CPU)
    torch.ones(16 * MEGABYTE)  # 64 MB
    assert 60 * MEGABYTE < peak(CPU) - before < 150 * MEGABYTE


def test_what_decoding_used_is_over_the_loaded_model() -> None:
    assert MemoryResult("plain", context=8, loaded=5, peak=9, new_tokens=1, seconds=1.0, fallback=None).used == 4


def bench_of(tmp_path: Path, specs: str) -> Bench:
    loading = {"dtype": None, "device": "cpu", "attn_implementation": None}
    run, methods = RunOptions(repeats=3), MethodOptions()
    return Bench("model", contenders(specs, methods), {}, [], tmp_path, methods, run, Grid(), loading, execute=False)


def test_what_cannot_run_is_left_out_unless_it_was_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []

    def once(job: MemoryJob) -> MemoryResult:
        measured.append(job.label)
        refusal = "not on this device" if job.label == "static" else None
        figures = {"context": 384, "loaded": 1, "peak": 1 + len(measured), "new_tokens": 1, "seconds": 1.0}
        return MemoryResult(job.label, **figures, fallback=None, refusal=refusal)

    monkeypatch.setattr(memory, "measure_once", once)
    report = bench_memory(bench_of(tmp_path, "default"), None, overwrite=False)
    assert report.head["context"] == 384
    assert "384 tokens of context" in str(report.table.title)
    assert [row["method"] for row in report.rows] == ["plain", "lookahead", "auto", "prompt_lookup"]
    assert report.notes == ["static is left out: not on this device"]
    assert [measured.count(label) for label in ("plain", "static", "auto")] == [3, 1, 3]
    assert report.rows[0]["peak"] == 3  # the median of three
    with pytest.raises(ValueError, match=r"which holds summary\.json"):
        bench_memory(bench_of(tmp_path, "plain"), 16, overwrite=False)
    with pytest.raises(ValueError, match="method 'static': not on this device"):
        bench_memory(bench_of(tmp_path, "static"), 16, overwrite=True)


def test_a_report_of_the_run_that_is_replaced_does_not_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = {"context": 8, "loaded": 1, "peak": 2, "new_tokens": 1, "seconds": 1.0, "fallback": None}
    monkeypatch.setattr(memory, "measure_once", lambda job: MemoryResult(job.label, **figures))
    for name in ("results.jsonl", "run.json", "summary.json", "report.md", "report.html", "speed.png"):
        (tmp_path / name).write_text("of a run of speeds")
    (tmp_path / "mine.txt").write_text("kept")
    bench_memory(bench_of(tmp_path, "plain"), 8, overwrite=True)
    assert {path.name for path in tmp_path.iterdir()} == {"summary.json", "mine.txt"}


def job(context: int | None, new_tokens: int = 128) -> MemoryJob:
    return MemoryJob("", "plain", {}, context=context, max_new_tokens=new_tokens, threads=1, seed=0, loading={})


def test_the_usual_context_is_no_longer_than_the_model_takes() -> None:
    assert context_for(job(None), None) == context_for(job(None), 4096) == DEFAULT_CONTEXT
    assert context_for(job(None), 384) == 384
    assert context_for(job(300), 384) == 300
    with pytest.raises(ValueError, match="--context must fit the model's 512 positions"):
        context_for(job(385), 384)
    with pytest.raises(ValueError, match="--max-new-tokens must be below the model's 512 positions, got 512"):
        context_for(job(None, 512), 0)


def test_a_system_that_tells_no_peak_imports_the_bench_and_refuses_to_measure_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on Windows."""
    monkeypatch.setitem(sys.modules, "resource", None)
    spec = spec_from_file_location("memory_elsewhere", memory.__file__)
    assert spec is not None
    assert spec.loader is not None
    elsewhere = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "memory_elsewhere", elsewhere)
    spec.loader.exec_module(elsewhere)
    monkeypatch.setattr(memory, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="--memory must be given with --device cuda on this system, got 'cpu'"):
        check_peak(CPU)
    check_peak(torch.device("cuda"))


@needs_fork
@pytest.mark.usefixtures("in_children")
def test_a_process_that_fails_is_quoted() -> None:
    job = MemoryJob(model="", label="warp", options={}, context=1, max_new_tokens=1, threads=1, seed=0, loading={})
    with pytest.raises(ChildProcessError, match="'warp' failed with status 1: a method must be one of"):
        measure_once(job)
