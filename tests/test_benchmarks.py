"""The scripts in benchmarks/ that time forwards and measure memory, in small."""

import json
from pathlib import Path
from typing import Any

import attention
import attention_cpu
import dtypes
import few_tokens
import fused_layers
import host_time
import memory
import older
import packed
import packed_weights
import pytest
import with_corpus
from click.testing import CliRunner

from lade.applications.bench.prompts import Prompt
from lade.applications.bench.promptsets import PromptSet
from lade.target import choice


def test_packed_forwards_and_padded_ones_compute_the_same() -> None:
    arguments = ["stories260K", "--contexts", "16", "--rounds", "2", "--threads", "1", "--json"]
    result = CliRunner().invoke(packed.main, arguments, catch_exceptions=False)
    found = json.loads(result.stdout)
    assert [timing["case"] for timing in found["timings"]] == list(packed.CASES)
    assert all(timing["ratio"] > 0 and timing["difference"] < 1e-3 for timing in found["timings"])
    assert set(found["machine"]) >= {"cpu", "versions", "date"}


def test_costs_by_dtype() -> None:
    arguments = ["stories260K", "--rounds", "1", "--dtypes", "float64,float32", "--json"]
    result = CliRunner().invoke(dtypes.main, arguments, catch_exceptions=False)
    double, single = json.loads(result.stdout)["costs"]
    assert [double["dtype"], single["dtype"]] == ["float64", "float32"]
    assert list(single["ratios"]) == [str(tokens) for tokens in dtypes.TOKENS]
    assert single["ratios"]["1"] == 1.0


def test_packed_weights() -> None:
    arguments = ["stories260K", "--rounds", "2", "--dtypes", "float64,float32", "--threads", "1", "--json"]
    result = CliRunner().invoke(packed_weights.main, arguments, catch_exceptions=False)
    found = json.loads(result.stdout)
    assert [timing["tokens"] for timing in found["timings"]] == [*packed_weights.TOKENS] * 2
    assert all(timing["ratio"] > 0 for timing in found["timings"])
    assert all(timing["same_bits"] for timing in found["timings"] if timing["dtype"] == "float64")  # nothing is packed


def test_fused_layers() -> None:
    arguments = ["stories260K", "--rounds", "2", "--dtypes", "float32", "--threads", "1", "--context", "9", "--json"]
    result = CliRunner().invoke(fused_layers.main, arguments, catch_exceptions=False)
    found = json.loads(result.stdout)
    assert [timing["nodes"] for timing in found["timings"]] == [*fused_layers.NODES]
    assert all(timing["ratio"] > 0 for timing in found["timings"])


@pytest.mark.parametrize(
    ("over", "dtype"), [*((over, "float32") for over in few_tokens.SECOND), ("products", "bfloat16")]
)
def test_few_tokens(over: str, dtype: str) -> None:
    arguments = ["stories260K", "--rounds", "2", "--threads", "1", "--context", "9", "--over", over, "--dtype", dtype]
    machines = [entry.machine for entry in few_tokens.LOOPS]
    result = CliRunner().invoke(few_tokens.main, [*arguments, "--json"], catch_exceptions=False)
    found = json.loads(result.stdout)
    assert [timing["nodes"] for timing in found["timings"]] == [*fused_layers.NODES]
    assert all(timing["ratio"] > 0 for timing in found["timings"])
    assert [entry.machine for entry in few_tokens.LOOPS] == machines


def test_with_a_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """The script ends with an error where a text differs."""
    asked = {"human_eval": ["One day, a bird", "Lily had a red ball"], "mbpp": ["Once upon a time"]}

    def suites(name: str, *rest: Any, **more: Any) -> list[PromptSet]:
        return [PromptSet(name, tuple(Prompt(number, (text,)) for number, text in enumerate(asked[name])))]

    monkeypatch.setattr(with_corpus, "from_suites", suites)
    monkeypatch.setattr(with_corpus.compiling, "begin", lambda: None)
    arguments = ["--model", "stories260K", "--others", "mbpp", "--new-tokens", "48", "--threads", "1", "--json"]
    result = CliRunner().invoke(with_corpus.main, arguments, catch_exceptions=False)
    sums = json.loads(result.stdout)["sums"]
    assert {name: each["tokens"] for name, each in sums.items()} == dict.fromkeys(sums, 96)
    assert all(len(each["seconds"]) == 2 for each in sums.values())


def test_host_time(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"{name} went to the"}) + "\n" for name in ("Tim", "Lily")))
    given = {"prompts": prompts, "rows": "1,2", "nodes": "3,4", "contexts": "20,60", "steps": 2, "threads": 1}
    arguments = [f"--{name}={value}" for name, value in given.items()]
    result = CliRunner().invoke(host_time.main, ["stories260K", *arguments, "--json"], catch_exceptions=False)
    found = json.loads(result.stdout)["found"]
    assert [(case["nodes"], case.get("rows"), case.get("context")) for case in found] == [
        *((nodes, rows, None) for rows in (1, 2) for nodes in (3, 4)),
        *((nodes, None, context) for nodes in (3, 4) for context in (20, 60)),
    ]
    assert all(case["host"] > case["drafting"] > 0 < case["model"] for case in found)


def test_host_time_of_no_rows() -> None:
    result = CliRunner().invoke(host_time.main, ["stories260K", "--rows=0"])
    assert result.exit_code
    assert "must be positive integers, separated by commas, got '0'" in result.output


def test_host_time_of_too_few_positions(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": "once " * 254}))
    arguments = ["stories260K", f"--prompts={prompts}", "--rows=1", "--nodes=2", "--contexts="]
    result = CliRunner().invoke(host_time.main, arguments)
    assert result.exit_code
    assert "MODEL must have positions for more than" in result.output


def test_few_tokens_are_not_compared_with_what_they_are() -> None:
    result = CliRunner().invoke(few_tokens.main, ["stories260K", "--dtype", "bfloat16", "--over", "packed"])
    assert result.exit_code
    assert "got 'packed'" in result.output


def test_peak_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, whose peak is not reset everywhere."""
    monkeypatch.setattr(memory, "POSITIONS", 24)
    monkeypatch.setattr(memory, "peak_of", memory.run)
    arguments = ["--shape", "code-512", "--batches", "2", "--new-tokens", "8", "--repeats", "1", "--threads", "1"]
    result = CliRunner().invoke(memory.main, arguments, catch_exceptions=False)
    machine, line = result.stdout.splitlines()
    assert "versions" in json.loads(machine)
    assert line.startswith("code-512 batch 2: plain ")


@pytest.mark.parametrize("contexts", ["0", "a", "16,"])
def test_wrong_contexts(contexts: str) -> None:
    result = CliRunner().invoke(packed.main, ["--contexts", contexts])
    assert result.exit_code == 2
    assert "must be positive integers, separated by commas" in result.output


def test_attention_of_a_tree_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every way computes the same, and the way that is chosen by time is named."""
    monkeypatch.setattr(choice, "SAMPLES", 1)
    arguments = [
        "--heads",
        "9/3 x 64",
        "--context",
        "20",
        "--context",
        "600",
        "--layers",
        "2",
        "--rounds",
        "2",
        "--threads",
        "1",
        "--json",
    ]
    found = json.loads(CliRunner().invoke(attention_cpu.main, arguments, catch_exceptions=False).stdout)["timings"]
    allowed = {20: ("masked", "loop"), 600: ("masked", "split", "loop")}
    assert [timing["context"] for timing in found] == [*allowed]
    assert all(timing["way"] in allowed[timing["context"]] for timing in found)
    assert all(timing["dense_ratio"] > 0 and timing["difference"] < 1e-5 for timing in found)


@pytest.mark.real
def test_steps_of_two_checkouts() -> None:
    """Beside itself, in small; an older checkout answers the same jobs through functions of its own."""
    arguments = [str(older.ROOT), "--only", "ragged", "--rounds", "2", "--threads", "1", "--json"]
    (found,) = json.loads(CliRunner().invoke(older.main, arguments, catch_exceptions=False).stdout)["timings"]
    assert found["case"] == "ragged, 8 rows"
    assert found["here_ms"] > 0
    assert found["older_ms"] > 0


def test_attention_of_a_tree_by_the_kernel() -> None:
    """A dry run of what a CUDA device is for: shapes and errors, no times."""
    interpreted = pytest.importorskip("interpreted", reason="needs triton", exc_type=ImportError)
    if not interpreted.chosen():
        pytest.skip("needs Triton's interpreter: no CUDA device")
    interpreted.hasten()
    arguments = ["--heads", "2/1 x 16", "--context", "20", "--nodes", "8", "--dtype", "float32", "--json"]
    result = CliRunner().invoke(attention.main, [*arguments, "--device", "cpu", "--rounds", "1"])
    (found,) = json.loads(result.stdout)["contexts"]
    assert all(error < 2e-6 for error in found["errors"].values())
    assert set(found["microseconds"]) == {"one", "tree", "dense", "one_sdpa"}
