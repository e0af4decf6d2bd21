"""`lade bench-diff`: paired differences of two runs made by hand, and what only one of them has."""

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from handmade import drafting, folder_of, record, two_tasks
from rich.cells import cell_len
from rich.console import Console

from lade.applications.bench.records import Record
from lade.applications.bench.report.difference import Difference, differences, only_in, trials_of
from lade.applications.bench_diff import command, table_of
from lade.applications.interval import Estimate

SAME = Estimate(1.0, 1.0, 1.0, 8)


def diff(a: Path, b: Path, *options: str) -> Result:
    return CliRunner().invoke(command, [str(a), str(b), *options])


def as_json(a: Path, b: Path) -> dict[str, Any]:
    """All that stands on stdout."""
    found: dict[str, Any] = json.loads(diff(a, b, "--json").stdout)
    return found


def compared(a: Sequence[Record], b: Sequence[Record]) -> dict[tuple[str | None, str], Difference]:
    return {(change.task, change.method): change for change in differences(trials_of(a), trials_of(b))}


def faster(records: Sequence[Record], method: str, times: float) -> list[Record]:
    return [replace(one, seconds=one.seconds / times) if one.method == method else one for one in records]


def runs(prompts: int = 8) -> list[Record]:
    """Plain decoding and one method with ratios from 2.0 to 2.7."""
    return [
        one
        for prompt in range(prompts)
        for one in (record("plain", prompt, 2.0, digest="a"), drafting("fast", prompt, 20 / (20 + prompt), digest="a"))
    ]


def test_a_run_does_not_differ_from_itself(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, two_tasks())
    result = diff(folder, folder / "results.jsonl", "--fail-if-slower")
    assert result.exit_code == 0, result.output
    assert "no difference; 0 texts and 0 scores changed" in result.stdout.splitlines()
    assert "{" not in result.stdout
    found = as_json(folder, folder)
    assert (found["notes"], found["only_in_a"], found["only_in_b"]) == ([], [], [])
    assert [(row["task"], row["method"]) for row in found["table"]] == [
        ("hand", "plain"), ("hand", "brand-new"), ("other", "plain"), ("other", "brand-new"),
        (None, "plain"), (None, "brand-new"),
    ]  # fmt: skip
    for row in found["table"]:
        one = {"median": 1.0, "low": None, "high": None, "n": row["prompts"]}
        assert row["tokens_per_step"] == row["tokens_per_second"] == row["speed_ratio"] == one
        assert row["verdict"] == "no difference"


def test_what_changed_is_b_over_a() -> None:
    before = runs()
    after = [
        replace(one, steps=6, tokens_per_step=2.0) if one.method == "fast" else one
        for one in faster(faster(before, "fast", 3.0), "plain", 2.0)
    ]
    found = compared(before, after)
    plain, fast = found["hand", "plain"], found["hand", "fast"]
    assert (plain.tokens_per_step, plain.speed_ratio) == (SAME, SAME)
    assert plain.tokens_per_second == Estimate(2.0, 2.0, 2.0, 8)
    assert fast.tokens_per_second is not None
    assert fast.tokens_per_second.median == pytest.approx(3.0)
    assert fast.speed_ratio is not None
    assert fast.speed_ratio.median == pytest.approx(1.5)
    assert fast.tokens_per_step is not None
    assert fast.tokens_per_step.median == pytest.approx(2 / 3)
    assert fast.verdict == "S lower, tokens/s higher, × plain higher"
    assert plain.verdict == "tokens/s higher"


def test_prompts_are_paired_before_anything_is_pooled() -> None:
    """A prompt is ten times as long in seconds as the other: pairs see the same 1.1, pooled speeds would not."""
    before = [record("plain", 0, 10.0), record("plain", 1, 1.0), record("plain", 2, 1.0)]
    after = [record("plain", 0, 10.0), record("plain", 1, 0.5), record("plain", 2, 1.0)]
    change = compared(before, after)["hand", "plain"]
    assert change.tokens_per_second is not None
    assert change.tokens_per_second == Estimate(1.0, None, None, 3)
    assert change.verdict == "no difference"


def test_repeats_and_turns_are_pooled_by_prompt() -> None:
    before = [record("plain", 0, seconds, repeat=repeat) for repeat, seconds in enumerate((1.0, 2.0, 50.0))]
    after = [record("plain", 0, 4.0, repeat=repeat) for repeat in range(5)]
    later = [record("plain", 0, 1.0, turn=1)]
    change = compared([*before, *later], [*after, *later])["hand", "plain"]
    assert (change.prompts, change.turns) == (1, 2)
    assert change.tokens_per_second is not None
    assert change.tokens_per_second == Estimate(pytest.approx(0.75), None, None, 1)  # of 2 / 4 and 1
    assert change.verdict == "unsure: fewer than 6 prompts"


def test_ratios_to_plain_decoding_are_taken_repeat_by_repeat() -> None:
    """The machine was slower in every repeat than in the one before, for both alike."""
    before = [record(method, 0, 2.0**repeat, repeat=repeat) for repeat in range(3) for method in ("plain", "fast")]
    after = [*(one for one in before if one.method == "plain"), record("fast", 0, 1.0, repeat=2)]
    change = compared(before, after)["hand", "fast"]
    assert change.speed_ratio == Estimate(4.0, None, None, 1)


def test_only_runs_of_the_same_condition_are_compared() -> None:
    before = [record("plain", 0, 1.0, temperature=0.0), record("plain", 0, 1.0, temperature=1.0, context=64)]
    after = [record("plain", 0, 2.0, temperature=0.0), record("plain", 0, 4.0, temperature=1.0, context=64)]
    found = differences(trials_of(before), trials_of(after))
    assert [(change.temperature, change.context) for change in found] == [(0.0, None), (1.0, 64)]
    assert [change.tokens_per_second.median for change in found if change.tokens_per_second] == [0.5, 0.25]
    assert differences(trials_of(before[:1]), trials_of(after[1:])) == []


def test_texts_and_scores_that_changed_are_counted() -> None:
    before = [record("plain", index, digest="a", score=index < 3) for index in range(6)]
    after = [
        replace(before[0], digest="b", score=False),
        replace(before[1], new_tokens=20),  # the digest decides
        replace(before[2], digest="", new_tokens=20),
        replace(before[3], digest="", score=True),
        replace(before[4], score=None),
        before[5],
    ]
    change = compared(before, after)["hand", "plain"]
    assert (change.texts_changed, change.turns) == (2, 6)
    assert (change.scores_gained, change.scores_lost) == (1, 1)


def test_what_only_one_has_is_named_as_shortly_as_it_can_be() -> None:
    before = [
        record("plain", 0),
        record("plain", 0, task="lost"),
        *(record("gone", prompt) for prompt in (0, 1)),
        *(record("plain", f"p{prompt}") for prompt in range(7)),
        record("plain", 0, batch=4),
    ]
    a, b = trials_of(before), trials_of([record("plain", 0), record("new", 0)])
    assert only_in(a, b) == [
        "condition temperature 0 · batch 4",
        "task lost",
        "method gone",
        "plain · hand · temperature 0 · batch 1: prompts "
        "p0 turn 0, p1 turn 0, p2 turn 0, p3 turn 0, p4 turn 0 and 2 more",
    ]
    assert only_in(b, a) == ["method new"]
    assert only_in(a, a) == []


def test_a_slower_method_can_fail_the_command(tmp_path: Path) -> None:
    a = folder_of(tmp_path / "a", runs())
    slower = folder_of(tmp_path / "slower", faster(runs(), "fast", 0.9))
    busier = folder_of(
        tmp_path / "busier", [replace(one, seconds=one.seconds * 2) for one in runs() if one.method == "fast"]
    )
    machine = folder_of(tmp_path / "machine", faster(faster(runs(), "fast", 0.5), "plain", 0.5))
    assert diff(a, slower).exit_code == 0
    refused = diff(a, slower, "--fail-if-slower")
    assert refused.exit_code == 3
    assert "fast: tokens/s lower, × plain lower; 0 texts and 0 scores changed" in refused.stdout
    assert "0.90 (0.90–0.90)" in refused.stdout
    assert diff(slower, a, "--fail-if-slower").exit_code == 0
    assert diff(a, busier, "--fail-if-slower").exit_code == 3  # without plain decoding, the clock alone decides
    found = diff(a, machine, "--fail-if-slower")
    assert "plain: tokens/s lower; fast: tokens/s lower" in found.stdout
    assert found.exit_code == 0  # all of it is: that is the machine


def test_the_table_fits_80_columns_and_single_tasks_are_told_below(tmp_path: Path) -> None:
    a = runs() + [replace(one, task="summarization", method=one.method) for one in runs()]
    b = [replace(one, seconds=one.seconds * 2) if one.task != "hand" and one.method == "fast" else one for one in a]
    result = diff(folder_of(tmp_path / "a", a), folder_of(tmp_path / "b", b))
    console = Console(width=80, file=io.StringIO())
    console.print(table_of(differences(trials_of(a), trials_of(b))))
    assert max(map(cell_len, console.file.getvalue().splitlines())) <= 80
    assert "…" not in console.file.getvalue()
    assert console.file.getvalue().count("0.50 (0.50–0.50)") == 2
    assert "summarization · fast: tokens/s lower, × plain lower" in result.stdout.splitlines()


def test_noise_is_no_difference(tmp_path: Path) -> None:
    """12 of 20 prompts are slower: the median is below 1, and surely nothing."""
    noisy = [
        replace(one, seconds=one.seconds * (1.1 if place % 5 < 3 else 0.9)) if one.method == "fast" else one
        for place, pair in enumerate(zip(runs(20)[::2], runs(20)[1::2], strict=True))
        for one in pair
    ]
    a, b = folder_of(tmp_path / "a", runs(20)), folder_of(tmp_path / "b", noisy)
    assert diff(a, b, "--fail-if-slower").exit_code == 0
    fast = next(row for row in as_json(a, b)["table"] if row["method"] == "fast")
    assert fast["speed_ratio"]["low"] <= fast["speed_ratio"]["median"] < 1 < fast["speed_ratio"]["high"]
    assert fast["verdict"] == "no difference"


def test_few_prompts_are_never_sure(tmp_path: Path) -> None:
    """All of five on one side is 1 in 16 by chance, all of six 1 in 32."""
    for prompts, verdict in ((5, "unsure: fewer than 6 prompts"), (6, "tokens/s lower, × plain lower")):
        before = runs(prompts)
        a, b = folder_of(tmp_path / "a", before), folder_of(tmp_path / "b", faster(before, "fast", 0.5))
        result = diff(a, b, "--fail-if-slower")
        assert f"fast: {verdict}" in result.stdout
        assert result.exit_code == (3 if prompts == 6 else 0)
    batch = [replace(one, batch=6, rows=6, seed=0) for one in runs(6)]
    assert compared(batch, faster(batch, "fast", 0.5))["hand", "fast"].verdict == "unsure: fewer than 6 batches"


def test_how_the_runs_were_made_differently_is_told(tmp_path: Path) -> None:
    a = folder_of(tmp_path / "a", runs(), dtype="float32", date="yesterday")
    b = folder_of(tmp_path / "b", runs(), dtype="bfloat16", date="today", seed=3)
    result = diff(a, b)
    assert as_json(a, b)["notes"] == ["dtype is float32 in A, bfloat16 in B", "seed is not set in A, 3 in B"]
    assert "dtype is float32 in A, bfloat16 in B" in result.stdout.splitlines()
    (b / "run.json").unlink()
    assert as_json(a, b)["notes"] == []


def test_all_but_the_json_goes_to_stderr(tmp_path: Path) -> None:
    a, b = folder_of(tmp_path / "a", runs(), seed=1), folder_of(tmp_path / "b", runs(), seed=2)
    result = diff(a, b, "--json")
    assert [change["method"] for change in json.loads(result.stdout)["table"]] == ["plain", "fast"]
    assert result.stderr == diff(a, b).stdout
    for told in ("B over A", "seed is 1 in A, 2 in B", "no difference; 0 texts and 0 scores changed"):
        assert told in result.stderr


def test_nothing_in_common_is_said(tmp_path: Path) -> None:
    a, b = folder_of(tmp_path / "a", [record("plain", 0)]), folder_of(tmp_path / "b", [record("plain", 0, task="else")])
    result = diff(a, b)
    assert result.exit_code == 0
    assert "nothing to compare: no method, task, prompt and condition is in both" in result.stdout
    assert "only in A: task hand" in result.stdout
    assert as_json(a, b)["table"] == []


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("results.jsonl", "[]\n", "results.jsonl:1: must be a JSON object"),
        ("results.jsonl", '{"method": "plain"}\n', "results.jsonl:1: the field 'task' is missing"),
        ("results.jsonl", "", "results.jsonl: must hold at least one record"),
        ("results.jsonl", None, "results.jsonl: cannot be read"),
        ("run.json", "{", "run.json: is not JSON"),
    ],
)
def test_bad_files_are_named(name: str, content: str | None, message: str, tmp_path: Path) -> None:
    a, b = folder_of(tmp_path / "a", runs()), folder_of(tmp_path / "b", runs())
    if content is None:
        (b / name).unlink()
    else:
        (b / name).write_text(content)
    result = diff(a, b)
    assert result.exit_code == 2
    assert message in result.stderr
    assert str(b) in result.stderr


def test_the_ratio_is_to_what_a_method_is_compared_with() -> None:
    """Plain decoding became twice as fast, what the method is compared with did not."""
    a = [record("plain", 0, 2.0), record("alone", 0, 4.0), record("fast", 0, 1.0, compared_with="alone")]
    change = compared(a, faster(a, "plain", 2.0))["hand", "fast"]
    assert change.speed_ratio == Estimate(1.0, None, None, 1)
    assert change.compared_with == "alone"


def test_ratios_to_several_baselines_stand_in_no_column_of_one(tmp_path: Path) -> None:
    a = [record("plain", prompt, 2.0) for prompt in range(6)]
    a += [record("fast", prompt, 1.0, compared_with="alone") for prompt in range(6)]
    a += [record("alone", prompt, 4.0, compared_with="alone") for prompt in range(6)]
    before, after = folder_of(tmp_path / "a", a), folder_of(tmp_path / "b", faster(a, "fast", 0.5))
    result = diff(before, after)
    assert "× baseline" in result.stdout
    assert "fast: tokens/s lower, × alone lower" in result.stdout
    assert "× plain" not in result.stdout
