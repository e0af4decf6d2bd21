"""`lade bench --workers`: what is started, counted and drawn; the processes themselves under the marker real."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lade.applications.bench import workers_report
from lade.applications.bench.command import command
from lade.applications.bench.workers import WorkersJob, WorkersResult, finished, numbers

ENDS = """
import pathlib, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(pathlib.Path(sys.argv[1]).write_text("ended")))
print("started", file=sys.stderr, flush=True)
signal.pause()
"""
ARGUMENTS = ["stories260K", "--suite", "stories", "--n", "2", "--max-new-tokens", "8", "--workers", "3"]


def shared(job: WorkersJob) -> WorkersResult:
    """As if every process computed an equal part."""
    return WorkersResult(job.label, job.workers, 30, 12, 24 / job.workers, 1.0, [[[1, 2]]])


def run(out: Path, *more: str) -> dict[str, Any]:
    result = CliRunner().invoke(command, [*ARGUMENTS, "--out", str(out), "--json", *more], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize(("workers", "expected"), [(2, [1, 2]), (3, [1, 2, 3]), (4, [1, 2, 4]), (6, [1, 2, 4, 6])])
def test_numbers(workers: int, expected: list[int]) -> None:
    assert numbers(workers) == expected


@pytest.mark.skipif(os.name == "nt", reason="a signal is not seen by a process there")
def test_what_is_interrupted_ends_its_own_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        process.stderr.readline()
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupt)
    with pytest.raises(KeyboardInterrupt):
        finished([sys.executable, "-c", ENDS, str(tmp_path / "end")], dict(os.environ))
    assert (tmp_path / "end").read_text() == "ended"


@pytest.mark.real
def test_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers_report, "measure", shared)
    found = run(tmp_path, "--methods", "auto,lookahead")
    assert [(row["method"], row["workers"]) for row in found["table"]] == [
        (method, number) for method in ("auto", "lookahead") for number in (1, 2, 3)
    ]
    assert all(row["same_text"] and row["tokens_per_step"] == 2.5 for row in found["table"])
    assert (tmp_path / "workers.png").stat().st_size > 1000
    assert any("fewer nodes per rank" in note for note in found["notes"])


def test_without_a_method_that_is_shared(tmp_path: Path) -> None:
    result = CliRunner().invoke(command, [*ARGUMENTS, "--out", str(tmp_path), "--methods", "suffix"])
    assert result.exit_code == 1
    assert "--methods must hold auto or lookahead" in result.output


@pytest.mark.slow
@pytest.mark.real
def test_processes(tmp_path: Path) -> None:
    found = run(tmp_path, "--methods", "auto", "--workers", "2")
    alone, both = found["table"]
    assert alone["same_text"]
    assert both["same_text"]
    assert both["nodes_per_rank"] < alone["nodes_per_rank"]
