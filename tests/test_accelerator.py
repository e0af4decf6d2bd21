"""The script that measures an accelerator, and the one that simulates a step: dry runs on a CPU."""

import json

import accelerator
import pytest
import simulated_step
from click.testing import CliRunner


@pytest.mark.real
def test_a_dry_run_of_all_parts() -> None:
    sizes = ["--prompts", "2", "--prompt-tokens", "20", "--new-tokens", "12", "--contexts", "40", "--batch", "2"]
    arguments = ["stories260K", "--device", "cpu", "--dtype", "float32", "--small", "--json", *sizes]
    result = CliRunner().invoke(accelerator.main, arguments, catch_exceptions=False)
    found = json.loads(result.stdout)
    parts = ("speeds", "steps", "synchronisations", "rates", "rates of 2 rows", "memory")
    assert set(parts) <= set(found["seconds"])
    assert not [part for part in parts if isinstance(found[part], dict) and "error" in found[part]]
    assert [step["nodes"] for step in found["steps"]] == list(accelerator.NODES)
    assert all(step["whole_ms"] >= step["host_ms"] > 0 for step in found["steps"])
    for rows, part in ((1, "rates"), (2, "rates of 2 rows")):
        ways = {name: way for name, way in found[part].items() if name != "repetition"}
        assert set(ways) == set(accelerator.WAYS) - ({"prompt_lookup"} if rows == 2 else set())
        assert [way["error"] for way in ways.values()] == [None] * len(ways)
        assert all(set(way["alike"]) == {rows * 12} for way in ways.values())


@pytest.mark.real
def test_a_simulated_step() -> None:
    result = CliRunner().invoke(simulated_step.main, ["--shape", "130M", "--contexts", "64"], catch_exceptions=False)
    found = json.loads(result.stdout)
    one, tree, fused, _ = found["steps"]
    assert one["kernels"] > 12 * 30
    assert fused["kernels"] < one["kernels"] / 2
    assert fused["most"]["index_copy_"] == 12 + 1, "one write per layer, and one for what is kept"
    assert fused["limit_ms"] < fused["device_ms"] < one["device_ms"] < tree["device_ms"] < 2 * one["step_ms"]
    assert found["assumed"]["bandwidth"] == 3e12


def test_a_part_that_fails_leaves_its_error() -> None:
    run = accelerator.Run(None, [], 1, [], 2, until=float("inf"))
    run.part("broken", lambda: [][0])
    run.until = 0.0
    run.part("late", lambda: 1)
    assert run.found["broken"] == {"error": "IndexError: list index out of range"}
    assert run.found["late"] == {"skipped": "no time was left"}
