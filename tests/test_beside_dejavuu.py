"""The comparison with dejavuu: what its file keeps, and what its report says. Its drafters are not run here."""

import ast
import json
from dataclasses import asdict, replace
from pathlib import Path

import beside_dejavuu as beside
import click
import pytest
from beside_dejavuu import KEPT, NEW, OURS, Row

COLD, WARM = f"lade cold, {NEW}", f"lade warm, {NEW}"
HEAD = {"model": "mine", "tokens": 8}


def row(system: str, prompt: str = "a", steps: int = 10, budget: int = 16, suite: str = "one", text: str = "x") -> Row:
    return Row(system, budget, suite, prompt, 40, steps, 10 * steps, text)


def lines_of(rows: list[Row]) -> list[str]:
    return list(beside.report(rows))


def test_ratios_are_of_the_best_drafter_that_keeps_as_much() -> None:
    rows = [
        *(row(COLD, prompt, 10) for prompt in "abcdef"),
        *(row(f"lade cold, {KEPT}", prompt, 8) for prompt in "abcdef"),
        *(row(f"dejavuu pld, {NEW}", prompt, 20) for prompt in "abcdef"),
        *(row(f"dejavuu lookup3, {NEW}", prompt, 16) for prompt in "abcdef"),
        *(row(f"dejavuu pld, {KEPT}", prompt, 12) for prompt in "abcdef"),
        *(row(f"dejavuu pld, {NEW}", prompt, 1, budget=32) for prompt in "abcdef"),
    ]
    lines = lines_of(rows)
    assert f"{COLD} | 16 | 10.0 | 4.00 | 4.00" in lines
    assert f"{COLD} | 16 | dejavuu lookup3, {NEW} | 1.60 (1.60–1.60) | 1.60 (1.60–1.60)" in lines
    assert f"lade cold, {KEPT} | 16 | dejavuu pld, {KEPT} | 1.50 (1.50–1.50) | 1.50 (1.50–1.50)" in lines
    assert sum(line.startswith("dejavuu") for line in lines) == 4  # with their own S; no ratio is theirs
    assert lines[-1] == "prompts: 6; with one text by all systems: 6"


def test_suites_stand_beside_all_and_differing_texts_are_counted() -> None:
    rows = [
        *(row(WARM, steps=steps, suite=suite) for suite, steps in (("one", 10), ("two", 30))),
        *(row(f"dejavuu pld, {NEW}", suite=suite, steps=20, text=suite[:1]) for suite in ("one", "two")),
    ]
    lines = lines_of(rows)
    assert f"{WARM} | 16 | 10.0 | 2.00 | 4.00 | 1.33" in lines
    assert f"{WARM} | 16 | dejavuu pld, {NEW} | 1.00 | 2.00 | 0.67" in lines
    assert lines[-1] == "prompts: 2; with one text by all systems: 0"


def test_complete_settings_are_kept_and_others_run_again(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    assert beside.complete(path, HEAD, 2) == []
    whole, part = [row(COLD, "a"), row(COLD, "b")], [row(WARM, "a")]
    with path.open("a") as file:
        file.write("".join(json.dumps(asdict(each)) + "\n" for each in whole + part) + '{"system": "cut')
    assert beside.complete(path, HEAD, 2) == whole
    assert beside.complete(path, HEAD, 2) == whole
    assert len(path.read_text().splitlines()) == 3
    with pytest.raises(click.ClickException, match="holds a run of other options: name another file"):
        beside.complete(path, HEAD | {"tokens": 9}, 2)


def test_a_prompt_without_steps_is_no_unit() -> None:
    rows = [row(COLD, "a"), replace(row(COLD, "b"), steps=0)]
    other = [row(f"dejavuu pld, {NEW}", prompt, 20) for prompt in "ab"]
    assert beside.ratio(rows, other).n == 1


def test_every_system_is_read_from_its_name() -> None:
    assert beside.drafter_of(f"dejavuu pld_recycle, {KEPT}") == "pld_recycle"
    assert [beside.kept(name) for name in OURS] == [False, False, True, True]


def test_the_worker_imports_nothing_of_lade() -> None:
    """It runs in an environment of its own."""
    tree = ast.parse(beside.WORKER.read_text())
    named = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    named |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert any(name.startswith("dejavuu") for name in named)
    assert not any(name.startswith("lade") for name in named)
