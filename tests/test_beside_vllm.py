"""The comparison with vLLM's own drafts: its settings, its report, and a run that goes on behind an earlier one."""

import ast
import json
from dataclasses import asdict
from pathlib import Path

import beside_vllm as beside
import click
import pytest
from beside_vllm import COLD, GATED, LADE, METHODS, NGRAM, PLAIN, SUFFIXES, Run

HEAD = {"model": "m", "tokens": 4}


def run(method: str, accepted: int = 0, seconds: float = 2.0, text: int = 1, at_once: int = 1) -> Run:
    texts = [[text] * 5, [2] * 5]
    return Run(method, at_once, texts, 8 - accepted, 2 * accepted, accepted, seconds, seconds, 0.004, 8)


def test_the_report_stands_beside_plain_decoding_at_as_many_requests() -> None:
    lines = [*beside.report([run(PLAIN), run(LADE, 4, 1.0), run(NGRAM, 2, text=7), run(PLAIN, at_once=8, seconds=1.0)])]
    assert lines[2] == "lade | 1 | 2 of 2 | 8 | 4 | 1.000 | 2.000 | 10.0 | 2.00 | 0.500"
    assert lines[3].startswith("ngram | 1 | 1 of 2 | 4 | 2 | 0.333 |")
    assert lines[4].endswith("| 10.0 | 1.00 | 0.500")


def test_every_method_has_the_same_number_of_draft_tokens() -> None:
    settings = [beside.speculative(method, 6) for method in METHODS if method != PLAIN]
    assert beside.speculative(PLAIN, 6) is None
    assert {each["num_speculative_tokens"] for each in settings if each} == {6}
    assert [beside.additional(method) for method in (PLAIN, NGRAM, SUFFIXES)] == [{}] * 3
    ours = {method: beside.additional(method)["lade"] for method in (COLD, LADE, GATED)}
    assert [each["adapt"] for each in ours.values()] == [False, False, True]
    assert [each["warm_table"] for each in ours.values()] == ["off", "auto", "auto"]


def test_earlier_runs_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    assert beside.earlier(path, HEAD) == []
    with path.open("a") as file:
        file.write(json.dumps(asdict(run(LADE, 3))) + '\n{"method": "cut')
    assert beside.earlier(path, HEAD) == [run(LADE, 3)]
    assert beside.earlier(path, HEAD) == [run(LADE, 3)]
    with pytest.raises(click.ClickException, match="holds a run of other options: name another file"):
        beside.earlier(path, HEAD | {"tokens": 9})


def test_the_worker_imports_nothing_of_lade() -> None:
    tree = ast.parse(beside.WORKER.read_text())
    named = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    named |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert "vllm" in named
    assert not any(str(name).startswith("lade") for name in named)
