"""The server keeps to its OpenAPI page: schemathesis finds no request that shows otherwise."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from running import Running

HERE = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.real
def test_schemathesis_finds_nothing(pair: Any) -> None:
    """All its checks but two, whose places `refusals` takes: some rules depend on the model, or compare fields, and
    some changes of a body leave it right."""
    if importlib.util.find_spec("schemathesis") is None:
        pytest.skip("schemathesis is not installed")
    with Running(pair) as running:
        running.server.service.planner.prompts.positions = 200  # without a bound, answers end there
        checks = ["--checks=all", "--exclude-checks=positive_data_acceptance,negative_data_rejection"]
        patience = ["--request-timeout=60", "--max-response-time=60"]  # seconds, of which a busy machine takes some
        asked = ["--seed=1", "--max-examples=10", "--no-color", "--continue-on-failure", *patience, *checks]
        run = subprocess.run(
            [sys.executable, "-m", "schemathesis.cli", "run", f"{running.url}/openapi.json", *asked],
            env=os.environ | {"SCHEMATHESIS_HOOKS": "refusals", "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])},
            capture_output=True,
            text=True,
            check=False,
        )
    assert run.returncode == 0, run.stdout[-20_000:] + run.stderr
    assert "Operations:       14 selected / 14 total" in run.stdout
    assert "No issues found" in run.stdout
