"""The kernel compiled for sm_90a without a device: no program of the table spills registers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytest.importorskip("triton")


@pytest.mark.slow
@pytest.mark.real
def test_every_program_fits_a_multiprocessor(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, ROOT / "benchmarks/kernel.py", "builds", "--output", tmp_path / "builds.jsonl"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ", 0 with a stack" in done.stdout
