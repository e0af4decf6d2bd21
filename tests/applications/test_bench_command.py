"""`lade bench` from the command line: its files, its grid, its interrupts, its refusals, its memory table."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from forks import needs_fork

from lade.applications.bench import command as bench_command
from lade.applications.bench import session
from lade.applications.bench.methods import METHODS, BenchMethod, Decode, MethodOptions
from lade.applications.bench.prompts import Prompt
from lade.applications.bench.records import Record, read_records
from lade.applications.bench.suites import SUITES, Suite
from lade.models.load import load
from lade.models.shipped import STORIES

pytestmark = pytest.mark.usefixtures("one_thread")

OPENINGS = '{"prompt": "Once upon a time, there was"}\n{"prompt": "One day, a little cat found", "prompt_id": "cat"}\n'


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "stories.jsonl"
    path.write_text(OPENINGS)
    return path


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No warm table of this user's is found, and none is left behind."""
    monkeypatch.setenv("LADE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def drawn() -> None:
    """The test's reports have their pictures."""


@pytest.fixture(autouse=True)
def undrawn_unless_asked(request: pytest.FixtureRequest) -> None:
    if "drawn" not in request.fixturenames:
        request.getfixturevalue("undrawn")


def bench(*arguments: object, model: object = STORIES) -> Result:
    return CliRunner().invoke(
        bench_command.command, [str(argument) for argument in (model, "--threads", 1, "--samples", 0, *arguments)]
    )


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.usefixtures("drawn")
def test_a_run_prints_a_table_and_keeps_every_record(prompts: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "folder"
    arguments = ("--max-new-tokens", 6, "--repeats", 2, "--eos", "1, 2", "--methods", "all")
    result = bench("--prompts", prompts, *arguments, "--samples", 1, "--out", out)
    assert result.exit_code == 0, result.output
    assert "method 'static' is left out: transformers compiles its static cache on cuda and xpu only" in result.stderr
    assert "method 'draft' is left out: needs the option draft" in result.stderr
    able = [name for name, method in METHODS.items() if name != "static" and not method.needs]
    records = lines(out / "results.jsonl")
    assert len(records) == 2 * 2 * len(able)
    assert {record["prompt_id"] for record in records} == {0, "cat"}
    wanted = {
        "method", "task", "prompt_id", "repeat", "new_tokens", "steps", "tokens_per_step", "mean_forward_tokens",
        "seconds", "model_seconds", "host_seconds", "identical_to_plain", "accepted", "fallback", "batch",
        "temperature", "seed", "proposed", "verified", "warm_seconds", "turn", "category", "context", "prompt_tokens",
        "prefill_seconds", "score", "parting", "peak_memory_bytes", "accepted_by_depth", "accepted_lengths", "widths",
    }  # fmt: skip
    assert all(wanted <= set(record) for record in records)
    assert all(record["identical_to_plain"] and record["new_tokens"] == 6 for record in records)
    samples = lines(out / "samples.jsonl")
    assert [sample["method"] for sample in samples] == able
    assert {("".join(text for text, _ in one["steps"]), sum(n for _, n in one["steps"])) for one in samples} == {
        ("".join(text for text, _ in samples[0]["steps"]), 6)
    }
    summary = json.loads((out / "summary.json").read_text())
    assert summary["options"]["eos"] == [1, 2]
    assert summary["machine"]["threads"] == 1
    assert set(summary["machine"]["versions"]) == {"lade", "torch", "transformers"}
    assert [row["method"] for row in summary["table"]] == able == summary["methods"]
    assert 0 < summary["harness"]["generate"] < summary["harness"]["loop"]
    assert set(summary["table"][0]["prompts"]) == {"0", "cat"}
    assert result.stdout.splitlines()[-1] == f"report: {out / 'report.html'}"
    assert all((out / name).read_bytes().startswith(b"\x89PNG") for name in ("speed.png", "accepted.png", "cost.png"))
    again = bench("--prompts", prompts, *arguments, "--out", out, "--json")
    assert [row["identical"] for row in json.loads(again.stdout)["table"]] == [4] * len(able)
    assert f"report: {out / 'report.html'}" in again.stderr
    assert "prompt_lookup" in next(line for line in reversed(result.stdout.splitlines()) if line.startswith("│"))


def test_the_device_is_the_one_of_the_other_commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from lade.applications import tune, warm

    defaults = {
        next(parameter.default for parameter in command.params if parameter.name == "device")
        for command in (bench_command.command, tune.command, warm.command)
    }
    assert len(defaults) == 1
    refused = bench("--device", "abacus", "--out", tmp_path / "out", model="no/such/model")
    assert refused.exit_code == 2
    assert "Invalid value for '--device'" in refused.stderr
    assert not (tmp_path / "out").exists()


def test_results_are_replaced_only_when_asked(prompts: Path, tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text("kept")
    arguments = ("--prompts", prompts, "--methods", "plain", "--limit", 1, "--max-new-tokens", 2, "--out", tmp_path)
    refused = bench(*arguments)
    assert refused.exit_code == 2
    assert "which holds results.jsonl; --overwrite replaces the run" in refused.stderr
    assert (tmp_path / "results.jsonl").read_text() == "kept"
    assert bench(*arguments, "--overwrite").exit_code == 0
    assert len(lines(tmp_path / "results.jsonl")) == 1


def test_a_half_of_the_prompts_can_be_chosen(prompts: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ("--prompts", prompts, "--methods", "static", "--max-new-tokens", 2, "--out", out)
    assert bench(*arguments, "--offset", 1, "--limit", 5).exit_code == 0
    found = [(record["method"], record["prompt_id"]) for record in lines(out / "results.jsonl")]
    assert sorted(found) == [("plain", "cat"), ("static", "cat")]


@pytest.mark.usefixtures("short_texts")
def test_the_cost_of_a_warm_table_stands_beside_what_it_gave(prompts: Path, tmp_path: Path, cache: Path) -> None:
    out = tmp_path / "out"
    methods = "auto:warm=1,auto,recycled:warm=1,suffix:warm=1"
    arguments = ("--prompts", prompts, "--methods", methods, "--budget", 8, "--max-new-tokens", 12)
    arguments = (*arguments, "--no-adapt", "--out", out)
    result = bench(*arguments)
    assert result.exit_code == 0, result.output
    assert len(list(cache.glob("*.safetensors"))) == 1
    plain, warmed, cold, recycled, suffix = json.loads((out / "summary.json").read_text())["table"]
    assert warmed["warm_seconds"] == recycled["warm_seconds"] > 0
    assert plain["warm_seconds"] is cold["warm_seconds"] is suffix["warm_seconds"] is None
    assert f"auto:warm=1: the warm table took {warmed['warm_seconds']:.2f} s, once" in result.stdout
    assert "warm" in warmed["proposed"]
    assert not {"suffix", "reference"} & set(recycled["proposed"])
    assert set(suffix["proposed"]) <= {"suffix"}
    assert "warm" not in cold["proposed"]  # though the table is there by now
    assert bench(*arguments, "--overwrite").exit_code == 0
    again = json.loads((out / "summary.json").read_text())["table"]
    assert again[1]["warm_seconds"] == warmed["warm_seconds"]  # found: what it cost when it was made


def test_every_source_is_accounted_for(prompts: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ("--prompts", prompts, "--methods", "auto", "--budget", 8, "--no-adapt", "--max-new-tokens", 40)
    result = bench(*arguments, "--out", out)
    assert result.exit_code == 0, result.output
    plain, auto = json.loads((out / "summary.json").read_text())["table"]
    assert plain["proposed"] == plain["verified"] == plain["accepted"] == {}
    records = [record for record in lines(out / "results.jsonl") if record["method"] == "auto"]
    for name in ("proposed", "verified", "accepted"):
        assert sum(auto[name].values()) == sum(sum(record[name].values()) for record in records) > 0
    for source, accepted in auto["accepted"].items():
        assert accepted <= auto["verified"][source] <= auto["proposed"][source]
        assert f"{source} {accepted}/{auto['verified'][source]}/{auto['proposed'][source]}" in result.stdout
    nodes = sum(record["mean_forward_tokens"] * record["steps"] for record in records)
    assert sum(auto["proposed"].values()) + sum(record["steps"] for record in records) == pytest.approx(nodes)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--methods", "plain,warp"), "a method must be one of plain, static, lookahead, auto"),
        (("--methods", "lookahead", "--guess-set-size", "0"), "--guess-set-size"),
        (("--methods", "auto", "--budget", "0"), "--budget"),
        (("--reference", "near"), "'near' is not one of 'equal', 'useless'"),
        (("--offset", "-1"), "--offset"),
        (("--offset", "2"), "stories.jsonl: holds 2 prompts, none after the first 2"),
        (("--eos", "1,x"), "must be token ids separated by commas, such as 1,2, got '1,x'"),
        (("--max-new-tokens", "0"), "--max-new-tokens"),
        (("--top-p", "0"), "--top-p"),
        (("--temperature", "0,warm"), "commas, each 0, or a number of at least 1e-05, got '0,warm'"),
        (("--temperature", "-1"), "commas, each 0, or a number of at least 1e-05, got '-1'"),
        (("--temperature", "inf"), "commas, each 0, or a number of at least 1e-05, got 'inf'"),
        (("--batch", "1,4,1"), "must be different numbers, got '1,4,1'"),
        (("--batch", "1.5"), "commas, each an integer of at least 1, got '1.5'"),
        (("--context", "0"), "commas, each an integer of at least 1, got '0'"),
        (("--memory", "--context", "16,32"), "--context must be one number with --memory"),
        (("--suite", "gsm8k"), "--suite and --prompts must not be given together"),
        (("--prompts", "missing.jsonl"), "missing.jsonl: cannot be read"),
    ],
)
def test_bad_options_are_refused_before_the_model_is_loaded(
    prompts: Path, tmp_path: Path, arguments: tuple[str, str], message: str
) -> None:
    result = bench("--prompts", prompts, "--out", tmp_path / "out", *arguments, model="no/such/model")
    assert result.exit_code == 2
    assert message in result.stderr
    assert "no/such/model" not in result.stderr
    assert not (tmp_path / "out").exists()


def test_folders_that_cannot_take_results_are_refused(prompts: Path) -> None:
    result = bench("--prompts", prompts, "--out", prompts / "below", model="stories260K")
    assert result.exit_code == 2
    assert "--out must be a folder that can be made, got" in result.stderr


def test_models_that_are_not_there_are_named(prompts: Path, tmp_path: Path) -> None:
    result = bench("--prompts", prompts, "--out", tmp_path / "out", model=tmp_path / "nowhere")
    assert result.exit_code == 2
    assert "nowhere" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--methods", "prompt_lookup", "--batch", "2,4"), "method 'prompt_lookup': decodes one prompt at a time"),
        (("--context", "501"), "--context must fit the model's 512 positions with 12 new tokens, got 501"),
        (("--eos", "512"), "--eos must be below the vocabulary's size of 512, got 512"),
    ],
)
def test_what_the_model_cannot_do_is_refused_before_the_first_run(
    prompts: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    result = bench("--prompts", prompts, "--out", tmp_path / "out", "--max-new-tokens", 12, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not any((tmp_path / "out").iterdir())


# The grid


def test_every_combination_runs_with_one_model(prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(bench_command, "load", lambda *args, **kwargs: loaded.append("model") or load(*args, **kwargs))
    out = tmp_path / "out"
    grid = ("--temperature", "0,1", "--batch", "1,2", "--context", "16,24")
    result = bench("--prompts", prompts, "--max-new-tokens", 4, *grid, "--methods", "lookahead", "--out", out)
    assert result.exit_code == 0, result.output
    assert loaded == ["model"]
    records = read_records(out / "results.jsonl")
    points = {(record.temperature, record.batch, record.context) for record in records}
    assert points == {
        (temperature, batch, context) for temperature in (0.0, 1.0) for batch in (1, 2) for context in (16, 24)
    }
    assert len(records) == 8 * 2 * 2
    assert all(record.prompt_tokens == record.context and record.rows == record.batch for record in records)
    assert all(record.identical_to_plain for record in records)
    assert {row["context"] for row in json.loads((out / "summary.json").read_text())["table"]} == {16, 24}


@pytest.mark.parametrize(("batch", "runs"), [("1,2", {1}), ("2", set())])
def test_a_method_without_batches_is_left_out_of_them_and_no_run_is_refused(
    prompts: Path, tmp_path: Path, batch: str, runs: set[int]
) -> None:
    out = tmp_path / "out"
    arguments = ("--methods", "prompt_lookup,suffix", "--batch", batch, "--max-new-tokens", 4)
    result = bench("--prompts", prompts, *arguments, "--out", out)
    assert result.exit_code == 0, result.output
    records = read_records(out / "results.jsonl")
    assert {record.batch for record in records if record.method == "prompt_lookup"} == runs
    assert {record.batch for record in records if record.method == "suffix"} == set(map(int, batch.split(",")))
    reason = "decodes one prompt at a time, not a batch of 2"
    how = "is left out where it cannot run" if runs else "is left out"
    assert f"method 'prompt_lookup' {how}: {reason}" in result.stderr
    how = how if runs else "did not run"
    assert f"prompt_lookup {how}: {reason}" in result.stdout
    assert f"prompt_lookup {how}: {reason}" in (out / "report.md").read_text()


def test_suites_are_run_turn_by_turn_and_their_answers_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    talk = Suite("talk", lambda: [Prompt("a", ("Once upon a time", "What then?"), "tales")], "none")
    sums = Suite("sums", lambda: [Prompt("b", ("One and one",), answer=2)], "none", lambda p, t, x: len(t) > p.answer)
    code = Suite(
        "code", lambda: [Prompt("c", ("def f",))], "none", lambda p, t, execute: execute or None, executes=True
    )
    for suite in (talk, sums, code):
        monkeypatch.setitem(SUITES, suite.name, suite)
    out = tmp_path / "out"
    arguments = ("--suite", "talk,sums,code", "--max-new-tokens", 6, "--methods", "plain", "--out", out)
    result = bench(*arguments)
    assert result.exit_code == 0, result.output
    assert "code: answers are not scored; --execute allows to run them" in result.stderr
    records = read_records(out / "results.jsonl")
    assert [(record.task, record.prompt_id, record.turn, record.category, record.score) for record in records] == [
        ("talk", "a", 0, "tales", None), ("talk", "a", 1, "tales", None), ("sums", "b", 0, "", True),
        ("code", "c", 0, "", None),
    ]  # fmt: skip
    assert bench(*arguments, "--execute", "--overwrite").exit_code == 0
    assert read_records(out / "results.jsonl")[-1].score is True


def test_a_later_method_needs_its_row_alone(prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It appears in the help, the records, the table, the report and the pictures."""

    def factory(options: MethodOptions) -> Decode:
        return lambda model, **arguments: model.generate(**arguments)

    monkeypatch.setitem(METHODS, "brandnew", BenchMethod("brandnew", factory, default=True))
    out = tmp_path / "out"
    for methods in ((), ("--methods", "all"), ("--methods", "brandnew:window=3")):
        result = bench("--prompts", prompts, "--n", 1, "--max-new-tokens", 3, *methods, "--out", out, "--overwrite")
        assert result.exit_code == 0, result.output
        assert any("brandnew" in line for line in result.stdout.splitlines() if line.startswith("│"))
        assert any(record.method.startswith("brandnew") for record in read_records(out / "results.jsonl"))
        assert "brandnew" in (out / "report.md").read_text()
        drawn = json.loads((out / "summary.json").read_text())["table"]
        assert any(row["method"].startswith("brandnew") and row["speed_ratio"]["median"] > 0 for row in drawn)


# Interrupts


def test_an_interrupted_run_goes_on(prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    arguments = ("--prompts", prompts, "--max-new-tokens", 4, "--repeats", 2, "--methods", "lookahead", "--out", out)
    whole = [trial_of(line) for line in finished(bench(*arguments, "--overwrite"), out)]
    real = session.run_trials

    def interrupted(*given: Any) -> Iterator[list[Record]]:
        trials = real(*given)
        yield next(trials)
        yield next(trials)
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "run_trials", interrupted)
    stopped = bench(*arguments, "--overwrite")
    assert stopped.exit_code == 130
    assert "interrupted; the same command continues" in stopped.stderr
    assert not (out / "summary.json").exists()
    assert len(lines(out / "results.jsonl")) == 4
    with (out / "results.jsonl").open("a") as file:
        file.write('{"method": "plain", "ta')  # as if it had been killed while it wrote
    monkeypatch.undo()
    goes_on = bench(*arguments)
    assert f"{out}: continues after 2 of 4 trials" in goes_on.stderr
    assert [trial_of(line) for line in finished(goes_on, out)] == whole
    assert json.loads((out / "run.json").read_text())["harness"]["sessions"] == 2
    before = (out / "results.jsonl").read_bytes()
    again = bench(*arguments)
    assert "continues after 4 of 4 trials" in again.stderr
    assert finished(again, out)
    assert (out / "results.jsonl").read_bytes() == before
    assert json.loads((out / "run.json").read_text())["harness"]["sessions"] == 2  # nothing was left to measure


def trial_of(record: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(record[name] for name in ("method", "prompt_id", "repeat", "seed", "steps", "digest"))


def finished(result: Result, out: Path) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    assert json.loads((out / "summary.json").read_text())["table"]
    return lines(out / "results.jsonl")


def test_another_run_is_not_mixed_in(prompts: Path, tmp_path: Path) -> None:
    arguments = ("--prompts", prompts, "--n", 1, "--methods", "plain", "--out", tmp_path)
    assert bench(*arguments, "--max-new-tokens", 3).exit_code == 0
    kept = (tmp_path / "results.jsonl").read_bytes()
    other = bench(*arguments, "--max-new-tokens", 4, "--batch", "2")
    assert other.exit_code == 2
    assert (
        "must hold the same run, got another: options.max_new_tokens is 3, not 4; options.batch is [1], not [2]"
        in other.stderr
    )
    more = bench(*arguments[:2], "--methods", "lookahead", "--out", tmp_path, "--max-new-tokens", 3)
    assert "methods is ['plain'], not ['plain', 'lookahead']; tasks.stories.prompts is 1, not 2" in more.stderr
    assert (tmp_path / "results.jsonl").read_bytes() == kept
    assert bench(*arguments, "--max-new-tokens", 4, "--overwrite").exit_code == 0


def test_the_harness_adds_little_to_what_it_measures(prompts: Path, tmp_path: Path) -> None:
    """Not timed: what it does itself is counted, and the rest of the loop is accounted for."""
    assert (
        bench(
            "--prompts", prompts, "--max-new-tokens", 4, "--methods", "auto:reference=equal", "--out", tmp_path
        ).exit_code
        == 0
    )
    spent = json.loads((tmp_path / "run.json").read_text())["harness"]
    apart = sum(spent[name] for name in ("warm-up", "reference", "audit", "score"))
    assert spent["warm-up"] > 0
    assert spent["reference"] > 0
    assert spent["overhead"] * spent["generate"] == pytest.approx(spent["loop"] - spent["generate"] - apart, abs=1e-3)


@pytest.mark.slow
@pytest.mark.real
def test_memory_is_measured_in_a_process_of_its_own_by_its_own_defaults(tmp_path: Path) -> None:
    """The model's positions end before the usual context does."""
    result = bench("--memory", "--methods", "plain", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["context"], summary["table"][0]["new_tokens"]) == (384, 128)
    assert "384 tokens of context, 128 new" in result.stdout
    assert 50e6 < summary["table"][0]["loaded"] <= summary["table"][0]["peak"] < 4e9  # Python with torch and a megabyte


@needs_fork
@pytest.mark.usefixtures("in_children")
def test_the_memory_of_several_methods(tmp_path: Path) -> None:
    arguments = ("--memory", "--methods", "lookahead", "--out", tmp_path, "--max-new-tokens", 8)
    result = bench(*arguments, "--context", 400, "--json")
    assert result.exit_code == 0, result.output
    assert f"report: {tmp_path / 'summary.json'}" in result.stderr
    plain, lookahead = json.loads(result.stdout)["table"]
    assert (plain["method"], lookahead["method"]) == ("plain", "lookahead")
    for row in (plain, lookahead):
        assert row["new_tokens"] == 8
        assert row["fallback"] is None
        assert 0 < row["loaded"] <= row["peak"]
    refused = bench(*arguments, "--context", 510, "--overwrite")
    assert refused.exit_code == 1
    assert "--context must fit the model's 512 positions with 8 new tokens, got 510" in refused.stderr
