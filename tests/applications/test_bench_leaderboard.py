"""`lade bench-report A B C`: which methods are ranked together, its files, and what it refuses."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from handmade import HEAD, drafting, folder_of, record

from lade.applications.bench_report import command

FILES = {"leaderboard.html", "leaderboard.md", "leaderboard.csv", "leaderboard.tex"}


def report(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def run(path: Path, method: str, seconds: float, **head: Any) -> Path:
    records = [one for p in (0, 1) for one in (record("plain", p, 2.0), drafting(method, p, seconds))]
    return folder_of(path, records, **head)


def boards(*arguments: object) -> list[dict[str, Any]]:
    result = report(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)["boards"]
    return found


def test_methods_of_several_runs_are_ranked_together(tmp_path: Path) -> None:
    folders = [run(tmp_path / name, method, s) for name, method, s in (("a", "slow", 4.0), ("b", "fast", 0.5))]
    other = record("apart", 0, 1.0, compared_with="apart")
    with (folders[0] / "results.jsonl").open("a") as file:
        file.write(json.dumps(vars(other)) + "\n")
    out = tmp_path / "new"
    result = report(*folders, "--out", out)
    assert result.exit_code == 0, result.output
    assert {path.name for path in out.iterdir()} == FILES
    assert result.stdout.splitlines()[-1] == f"leaderboard: {out / 'leaderboard.html'}"
    rows = [line.split(" | ") for line in (out / "leaderboard.md").read_text().splitlines() if line.startswith("| ")]
    assert [(row[0].strip("| "), row[1], row[2]) for row in rows[2:]] == [
        ("1", "fast", "b"), ("2", "plain", "a"), ("3", "plain", "b"), ("4", "slow", "a"), ("–", "apart (alone)", "a"),
    ]  # fmt: skip
    page = (out / "leaderboard.html").read_text()
    assert page.index('<td class="label">fast</td>') < page.index('<td class="label">slow</td>')
    lines = list(csv.DictReader(io.StringIO((out / "leaderboard.csv").read_text())))
    assert {(line["run"], line["method"]) for line in lines} >= {("a", "slow"), ("b", "fast")}
    for folder in folders:
        assert {path.name for path in folder.iterdir()} == {"results.jsonl", "run.json"}


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "another"},
        {"dtype": "bfloat16"},
        {"machine": {"cpu": "a slide rule", "threads": 1}},
        {"options": HEAD["options"] | {"max_new_tokens": 13}},  # type: ignore[operator]
        {"tasks": {"hand": HEAD["tasks"]["hand"] | {"digest": "other"}}},  # type: ignore[index]
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_differs_is_not_ranked_together(changes: dict[str, Any], tmp_path: Path) -> None:
    one, two = run(tmp_path / "a", "fast", 1.0), run(tmp_path / "b", "fast", 1.0, **changes)
    three = run(tmp_path / "c", "new", 0.5)
    found = boards(one, two, three, "--out", tmp_path)
    assert [{entry["run"] for entry in board["table"]} for board in found] == [{"a", "c"}, {"b"}]


def test_the_leaderboard_of_one_run_is_made_only_where_asked(tmp_path: Path) -> None:
    folder = run(tmp_path / "a", "fast", 1.0)
    assert [entry["method"] for entry in boards(folder, "--out", tmp_path)[0]["table"]] == ["fast", "plain"]
    assert not (folder / "report.html").exists()


def test_runs_of_the_same_name_are_told_apart(tmp_path: Path) -> None:
    folders = [run(tmp_path / name / "run", "fast", 1.0) for name in "ab"]
    assert {entry["run"] for entry in boards(*folders, "--out", tmp_path)[0]["table"]} == set(map(str, folders))


def test_the_same_run_twice_and_a_folder_without_a_run_are_refused(tmp_path: Path) -> None:
    folder = run(tmp_path / "a", "fast", 1.0)
    twice = report(folder, folder, "--out", tmp_path / "out")
    assert twice.exit_code == 2
    assert f"FOLDERS must be different, got {folder} twice" in twice.stderr
    absent = report(folder, tmp_path / "b", "--out", tmp_path / "out")
    assert absent.exit_code == 2
    assert "results.jsonl: cannot be read" in absent.stderr
    assert not (tmp_path / "out").exists()
