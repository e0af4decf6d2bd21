"""What is kept of an interrupted run, what is run again, and what a run must share with the one that it continues."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from benchtools import PROMPTS

from lade.applications.bench.continuation import keys_of, left_to_run
from lade.applications.bench.conversation import Style
from lade.applications.bench.records import Record, as_line, read_records
from lade.applications.bench.runfile import add_session, check_same, read_run, write_run
from lade.applications.bench.task import Fitting, RunOptions, Task
from lade.applications.bench.timings import Timings
from lade.applications.bench.trial import Trial, trials_of

METHODS = {1: ["plain", "auto"], 2: ["plain"]}
TASK = Task("hand", tuple(Fitting(prompt, len(prompt.turns), 9) for prompt in PROMPTS), 0, Style(None))  # type: ignore[arg-type]


def plan() -> list[Trial]:
    return [
        trial
        for temperature, batch in ((0.0, 1), (0.0, 2), (1.0, 1))
        for trial in trials_of(TASK, RunOptions(temperature=temperature, batch=batch, repeats=2))
    ]


def records_of(trial: Trial) -> list[Record]:
    return [
        Record(
            method=method, task=task, prompt_id=prompt_id, turn=turn, repeat=repeat, temperature=temperature,
            batch=batch, context=context, prompt_tokens=3, new_tokens=2, steps=1, tokens_per_step=2.0,
            mean_forward_tokens=1.0, seconds=1.0, prefill_seconds=0.1, model_seconds=0.1, host_seconds=0.1,
            identical_to_plain=True,
        )
        for method, task, prompt_id, turn, repeat, temperature, batch, context in sorted(
            keys_of(trial, METHODS[trial.options.batch]), key=str
        )
    ]  # fmt: skip


def test_a_trial_is_all_methods_on_its_prompts_and_turns() -> None:
    trials = plan()
    assert len(trials) == 6 + 4 + 6
    assert [[row.prompt.id for row in trial.rows] for trial in trials[6:10]] == [[0, 1], [0, 1], ["two"], ["two"]]
    assert len(keys_of(trials[4], METHODS[1])) == 2 * 2  # two turns, two methods
    assert len(set().union(*(keys_of(trial, METHODS[trial.options.batch]) for trial in trials))) == 16 + 8 + 16


@pytest.mark.parametrize("whole", [0, 1, 5, 11, 15])
@pytest.mark.parametrize("torn", ["", "{", "record", "record and line end"])
def test_whole_trials_are_kept_and_the_rest_is_run_again(tmp_path: Path, whole: int, torn: str) -> None:
    path, trials = tmp_path / "results.jsonl", plan()
    kept = "".join(as_line(record) for trial in trials[:whole] for record in records_of(trial))
    begun = as_line(records_of(trials[whole])[0])
    path.write_text(kept + {"": "", "{": begun[:30], "record": begun[:-1], "record and line end": begun}[torn])
    complete = whole + (torn == "record and line end" and len(records_of(trials[whole])) == 1)
    assert left_to_run(path, trials, METHODS) == trials[complete:]
    assert path.read_text() == "".join(as_line(record) for trial in trials[:complete] for record in records_of(trial))
    assert len(read_records(path)) == len(path.read_text().splitlines())


def test_a_finished_run_leaves_nothing_and_a_new_one_everything(tmp_path: Path) -> None:
    path, trials = tmp_path / "results.jsonl", plan()
    assert left_to_run(path, trials, METHODS) == trials
    assert not path.exists()
    path.write_text("".join(as_line(record) for trial in trials for record in records_of(trial)))
    assert left_to_run(path, trials, METHODS) == []


def test_records_of_no_trial_and_broken_lines_are_named(tmp_path: Path) -> None:
    path, trials = tmp_path / "results.jsonl", plan()
    record = records_of(trials[0])[0]
    path.write_text(as_line(record) + as_line(replace(record, method="new")))
    with pytest.raises(ValueError, match=r"record 2 must be of one of this run's trials, got \('new', 'hand'"):
        left_to_run(path, trials, METHODS)
    path.write_text("{}\n" + as_line(record))
    with pytest.raises(ValueError, match=r"results\.jsonl:1: the field 'method' is missing"):
        left_to_run(path, trials, METHODS)


def test_another_run_is_refused_by_what_differs(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    head = {"model": "m", "date": "today", "machine": {"cpu": "c", "date": "today"}, "options": {"eos": (1, 2), "n": 3}}
    write_run(path, head)
    add_session(path, Timings().summary(1.0))
    check_same(path, head | {"date": "later", "machine": {"cpu": "c", "date": "later"}})
    other = head | {"machine": {"cpu": "d"}, "options": {"eos": (1, 2), "n": 4, "new": True}}
    message = (
        r"run\.json must hold the same run, got another: "
        r"machine\.cpu is 'c', not 'd'; options\.n is 3, not 4; options\.new is None"
    )
    with pytest.raises(ValueError, match=message):
        check_same(path, other)
    path.write_text("[]")
    with pytest.raises(ValueError, match=r"run\.json: must be a JSON object"):
        check_same(path, head)


def test_sessions_add_up(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_run(path, {"model": "m"})
    for measured, loop in ((8.0, 12.0), (2.0, 3.0)):
        timings = Timings()
        timings.seconds["generate"] = measured
        timings.seconds["audit"] = measured / 4
        add_session(path, timings.summary(loop))
    assert read_run(path) == {
        "model": "m",
        "harness": {
            "sessions": 2, "generate": 10.0, "warm-up": 0.0, "reference": 0.0, "audit": 2.5, "score": 0.0,
            "loop": 15.0, "overhead": 0.25,
        },
    }  # fmt: skip


def test_what_is_timed_is_added_up_even_where_it_fails() -> None:
    timings = Timings()
    with timings.time("audit"):
        pass
    with pytest.raises(ZeroDivisionError), timings.time("audit"):
        json.dumps(1 / 0)
    assert timings.seconds["audit"] > 0
    assert timings.summary(1.0)["overhead"] == 0  # nothing was measured
