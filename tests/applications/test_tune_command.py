"""`lade tune` from the command line: its preset, its table, its picture, its interrupts and its refusals."""

import json
import math
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import lade
from lade.applications import tuning
from lade.applications.bench.methods import METHODS, MethodOptions
from lade.applications.bench.records import Record
from lade.applications.candidates import DEFAULT, settings_of
from lade.applications.interval import Estimate
from lade.applications.search.autotune import Standing
from lade.applications.surface import Measured, curve_of, grid_of
from lade.applications.tune import command
from lade.models.shipped import STORIES

pytestmark = pytest.mark.usefixtures("one_thread", "table_folder", "default_settings")

CANDIDATES = "lookahead:level=3:window=2:guesses=2,auto:budget=4"
PROMPTS = (
    "Once upon a time, there was",
    "One day, a little cat found",
    "Tom had a big red",
    "Lily and Ben went",
    "The sun was",
    "A bird sat on",
)
SPEED = {"lookahead:level=3:window=2:guesses=2": 1.2, "auto:budget=4": 1.5, "auto:budget=8": 0.8, "auto:budget=2": 1.0}


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "stories.jsonl"
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in PROMPTS))
    return path


@pytest.fixture(scope="module")
def records() -> list[Record]:
    """The first record of a run, made when it is asked for: others differ in what `known_speeds` tells of them."""
    return []


@pytest.fixture
def known_speeds(monkeypatch: pytest.MonkeyPatch, records: list[Record]) -> list[list[str]]:
    """Runs are not made and are as fast as `SPEED` says; collects which methods would run in which order."""
    ran: list[list[str]] = []
    real = tuning.run_task

    def run_task(model: Any, contenders: Any, task: Any, options: Any) -> Iterator[Record]:
        ran.append([contender.label for contender in contenders])
        (fitting,) = task.prompts
        for repeat, contender in product(range(options.repeats), contenders):
            changes = {"method": contender.label, "prompt_id": fitting.prompt.id, "repeat": repeat}
            values = vars(first(model, contenders, task, options)) | changes
            yield Record(**values | {"seconds": values["new_tokens"] / SPEED.get(contender.label, 1.0)})

    def first(*arguments: Any) -> Record:
        if not records:
            records.append(next(real(*arguments)))
        return records[0]

    monkeypatch.setattr(tuning, "run_task", run_task)
    return ran


def tune(prompts: Path, *arguments: object, model: object = STORIES) -> Result:
    fixed = ("--prompts", prompts, "--max-new-tokens", 4, "--threads", 1, "--device", "cpu")
    return CliRunner().invoke(command, [str(argument) for argument in (model, *fixed, *arguments)])


def measured(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# What it finds


def test_real_runs_end_in_a_preset_that_decodes(prompts: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "mine.json"
    result = tune(prompts, "--candidates", CANDIDATES, "--out", out)
    assert result.exit_code == 0, result.output
    head, *lines = measured(out.with_name("mine.measurements.jsonl"))
    assert head["max_new_tokens"] == 4
    assert {(line["candidate"], line["prompt"]) for line in lines} == {
        (label, prompt) for label in CANDIDATES.split(",") for prompt in range(6)
    }
    assert all(len(line["ratios"]) == 2 and min(line["ratios"]) > 0 for line in lines)
    assert result.stdout.splitlines()[-1] == f"lade.config_lade(PRESET={str(out)!r})"
    assert "{" not in result.stdout
    assert all(label in result.stdout for label in CANDIDATES.split(","))
    lade.config_lade(PRESET=out)
    model, tokenizer = lade.models.load("stories260K")
    inputs = tokenizer(PROMPTS[0], return_tensors="pt")
    expected = model.generate(**inputs, max_new_tokens=8, do_sample=False)
    assert lade.generate(model, **inputs, max_new_tokens=8, do_sample=False).tolist() == expected.tolist()


def test_the_fastest_of_each_mode_is_kept(prompts: Path, tmp_path: Path, known_speeds: list[list[str]]) -> None:
    out = tmp_path / "mine.json"
    candidates = f"{CANDIDATES},auto:budget=8"
    result = tune(prompts, "--draft-free", candidates, "--pool-from-prompt", "--out", out)
    assert result.exit_code == 0, result.output
    written = json.loads(out.read_text())
    assert written["mode"] == "auto"
    assert written["settings"]["auto"]["BUDGET"] == 4
    assert written["settings"]["lookahead"] == {
        "LEVEL": 3, "WINDOW_SIZE": 2, "GUESS_SET_SIZE": 2, "POOL_FROM_PROMPT": 1,
    }  # fmt: skip
    assert written["speed"]["auto"]["median"] == pytest.approx(1.5)
    assert lade.config_lade(PRESET=out).budget == 4
    assert lade.config_lade(PRESET=out, MODE="lookahead").window == 2
    rows = {
        label: line for line in result.stdout.splitlines() for label in candidates.split(",") if f"{label} " in line
    }
    assert "1.50 (1.50–1.50)" in rows["auto:budget=4"]
    assert "chosen, fastest mode" in rows["auto:budget=4"]
    assert "chosen for its mode" in rows["lookahead:level=3:window=2:guesses=2"]
    assert "surely slower" in rows["auto:budget=8"]


def test_what_is_surely_slower_is_called_so(prompts: Path, tmp_path: Path, known_speeds: list[list[str]]) -> None:
    result = tune(prompts, "--candidates", "auto:budget=8,auto:budget=2", "--out", tmp_path / "mine.json")
    assert result.exit_code == 0, result.output
    rows = {label: line for line in result.stdout.splitlines() for label in SPEED if f"{label} " in line}
    assert "0.80 (0.80–0.80)" in rows["auto:budget=8"]
    assert "surely slower" in rows["auto:budget=8"]
    assert "not surely faster" in rows["auto:budget=2"]


def test_what_left_after_few_prompts_has_no_interval(
    prompts: Path, tmp_path: Path, known_speeds: list[list[str]]
) -> None:
    candidates = ",".join(f"auto:budget={budget}" for budget in (2, 3, 4, 8, 16))
    result = tune(prompts, "--candidates", candidates, "--out", tmp_path / "mine.json")
    assert result.exit_code == 0, result.output
    row = next(line for line in result.stdout.splitlines() if "auto:budget=8 " in line)
    assert "0.80 (n < 6)" in row
    assert "left out" in row
    assert "n < 6: no interval" in " ".join(result.stdout.split())


def test_every_candidate_runs_in_turn_with_plain_decoding(
    prompts: Path, tmp_path: Path, known_speeds: list[list[str]]
) -> None:
    assert tune(prompts, "--candidates", CANDIDATES, "--out", tmp_path / "mine.json").exit_code == 0
    assert all(len(pair) == 2 and "plain" in pair for pair in known_speeds)
    for label in CANDIDATES.split(","):
        assert [pair.index("plain") for pair in known_speeds if label in pair] == [1, 0, 1, 0, 1, 0]


def test_plain_decoding_stays_where_nothing_is_faster(
    prompts: Path, tmp_path: Path, known_speeds: list[list[str]]
) -> None:
    out = tmp_path / "mine.json"
    result = tune(prompts, "--candidates", "auto:budget=8", "--out", out)
    assert result.exit_code == 0, result.output
    assert "nothing is surely faster than plain decoding" in result.stdout
    lade.config_lade(PRESET=out)
    model, tokenizer = lade.models.load("stories260K")
    lade.generate(model, **tokenizer(PROMPTS[0], return_tensors="pt"), max_new_tokens=8, do_sample=False)
    stats = lade.last_stats()
    assert stats is not None
    assert stats.mean_forward_tokens == 1


def test_the_preset_lies_in_the_cache_under_the_model_s_name(
    prompts: Path, table_folder: Path, known_speeds: list[list[str]]
) -> None:
    assert tune(prompts, "--candidates", "auto:budget=4").exit_code == 0
    assert (table_folder / "presets" / "stories260K.json").is_file()
    assert lade.config_lade(PRESET="stories260K").budget == 4


# Interrupts and refusals


def test_the_same_command_goes_on_behind_an_interrupt(
    prompts: Path, tmp_path: Path, known_speeds: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "mine.json"
    kept = tmp_path / "mine.measurements.jsonl"
    working = tuning.run_task

    def interrupted(*arguments: Any) -> Iterator[Record]:
        if len(known_speeds) == 4:
            raise KeyboardInterrupt
        yield from working(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(tuning, "run_task", interrupted)
        result = tune(prompts, "--candidates", CANDIDATES, "--out", out)
    assert result.exit_code == 130
    assert f"interrupted; {kept} holds 4 measurements" in result.stderr
    assert len(measured(kept)) == 1 + 4
    assert not out.exists()
    resumed = tune(prompts, "--candidates", CANDIDATES, "--out", out)
    assert resumed.exit_code == 0, resumed.output
    assert "continues after 4 measurements" in resumed.stderr
    assert len(known_speeds) == 12
    again = tune(prompts, "--candidates", CANDIDATES, "--out", out, "--json")
    assert again.exit_code == 0
    assert len(known_speeds) == 12  # nothing is left to measure
    assert json.loads(again.stdout) == json.loads(out.read_text())
    assert f"lade.config_lade(PRESET={str(out)!r})" in again.stderr


def broken_off(*arguments: Any) -> Iterator[Record]:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        (("--max-new-tokens", 5), "max_new_tokens=4; this run has max_new_tokens=5"),
        (("--candidates", "auto:budget=8"), "candidates="),
        (("--repeats", 3), "repeats=2"),
        (("--dtype", "bfloat16"), "dtype='float32'"),
        (("--pool-from-prompt",), "pool_from_prompt=False"),
        ("prompts", "prompts="),
    ],
)
def test_measurements_of_another_run_are_refused(
    changes: Any, name: str, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run is broken off: what it would measure does not matter here."""
    arguments = ("--candidates", "auto:budget=4", "--out", tmp_path / "mine.json")
    monkeypatch.setattr(tuning, "run_task", broken_off)
    assert tune(prompts, *arguments).exit_code == 130
    if changes == "prompts":
        prompts.write_text(prompts.read_text().replace("cat", "dog"))
        changes = ()
    before = (tmp_path / "mine.measurements.jsonl").read_bytes()
    refused = tune(prompts, *arguments, *changes)
    assert refused.exit_code == 2
    assert "mine.measurements.jsonl: was measured with" in refused.stderr
    assert name in refused.stderr
    assert (tmp_path / "mine.measurements.jsonl").read_bytes() == before
    assert tune(prompts, *arguments, *changes, "--overwrite").exit_code == 130
    assert (tmp_path / "mine.measurements.jsonl").read_bytes() != before


def test_a_preset_names_its_mode_and_what_was_measured() -> None:
    specs = "auto:budget=16,auto:budget=16:level=3:window=4,lookahead:level=4:window=3"
    _, (plain_auto, limited, paper) = settings_of(specs, MethodOptions(adapt=False))
    assert (plain_auto.mode, plain_auto.preset) == ("auto", {"BUDGET": 16, "ADAPT": 0})
    assert (limited.mode, limited.preset) == ("auto", {"LEVEL": 3, "WINDOW_SIZE": 4, "BUDGET": 16, "ADAPT": 0})
    sizes = {"LEVEL": 4, "WINDOW_SIZE": 3, "GUESS_SET_SIZE": 3, "POOL_FROM_PROMPT": 0}
    assert (paper.mode, paper.preset) == ("lookahead", sizes)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--candidates", "warp"), "a method must be one of"),
        (("--candidates", "plain"), "must have at least one label besides plain, got 'plain'"),
        (("--candidates", "prompt_lookup"), "must be lookahead:level=N:window=W:guesses=G or auto:budget=B, got"),
        (("--candidates", "auto"), "a candidate must be lookahead"),
        (("--candidates", "auto:budget=0"), "budget must be an integer of at least 1"),
        (("--candidates", "lookahead:window=0"), "window must be an integer of at least 1"),
        (("--candidates", "auto:budget=5000"), "at most 4096, got 5000"),
        (("--n", "5", "--repeats", "9"), "must give at least 6 prompts that fit the model, got 5"),
        (("--prompts", "missing.jsonl"), "missing.jsonl: cannot be read"),
        (("--out", "mine.txt"), "--out must end in .json, got"),
        (("--picture", "mine.gif"), "--picture must end in .pdf or .png or .svg, got"),
        (("--picture", "nowhere/mine.png"), "--picture must be in a folder that exists, got"),
        (("--max-new-tokens", "1"), "--max-new-tokens"),
    ],
)
def test_bad_options_are_refused_before_the_model_is_loaded(
    prompts: Path, tmp_path: Path, arguments: tuple[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lade.applications.tune.load_model", lambda *_, **__: pytest.fail("a model was loaded"))
    result = tune(prompts, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["stories.jsonl"]


def test_a_file_that_is_no_tuning_s_is_not_replaced(prompts: Path, tmp_path: Path) -> None:
    out = tmp_path / "config.json"
    out.write_text("kept")
    result = tune(prompts, "--out", out)
    assert result.exit_code == 2
    assert "config.json, which exists; --overwrite replaces it" in result.stderr
    assert out.read_text() == "kept"


def test_a_picture_needs_its_extra(prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr("lade.applications.tune.load_model", lambda *_, **__: pytest.fail("a model was loaded"))
    result = tune(prompts, "--picture", tmp_path / "mine.png", "--out", tmp_path / "mine.json")
    assert result.exit_code == 1
    assert "needs matplotlib; pip install 'lade-decoding[plot]'" in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["stories.jsonl"]


def test_models_that_lade_decodes_plainly_are_told(
    prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tuning.run_task

    def run_task(*arguments: Any) -> Iterator[Record]:
        return (Record(**(vars(record) | {"fallback": "it cannot be branched"})) for record in real(*arguments))

    monkeypatch.setattr(tuning, "run_task", run_task)
    result = tune(prompts, "--candidates", CANDIDATES, "--out", tmp_path / "mine.json")
    assert result.exit_code == 1
    assert "lade falls back to plain decoding: it cannot be branched" in result.stderr


# Candidates and the picture


def test_the_default_candidates_are_a_grid_of_distinct_settings() -> None:
    _, settings = settings_of(DEFAULT, MethodOptions())
    assert len({json.dumps(setting.preset) for setting in settings}) == len(settings) == 36
    sizes = {setting.candidate.label: setting.candidate.size for setting in settings}
    assert sizes["lookahead:level=5:window=15:guesses=15"] == 120
    assert sizes["auto:budget=24"] == 24
    assert {setting.mode for setting in settings} <= set(METHODS)


@pytest.mark.parametrize(
    ("label", "size"),
    [
        ("lookahead:level=3:window=4", 16),
        ("lookahead:level=3:window=4:guesses=-1", sys.maxsize),
        ("lookahead:level=3:window=4:guesses=-1:budget=30", 30),
    ],
)
def test_the_size_of_a_candidate(label: str, size: int) -> None:
    _, (setting,) = settings_of(label, MethodOptions())
    assert setting.candidate.size == size
    assert setting.preset.get("BUDGET") == (30 if size == 30 else None)


def surface() -> Measured:
    """N 3 and 5, W 2 and 4, G 2 and 4 without one of them, and three budgets; (5, 4, 4) is the fastest."""
    labels = [f"lookahead:level={n}:window={w}:guesses={g}" for n in (3, 5) for w in (2, 4) for g in (2, 4)]
    _, settings = settings_of(
        ",".join([*labels[:3], *labels[4:], *(f"auto:budget={b}" for b in (8, 2, 4))]), MethodOptions()
    )
    return [
        (setting, Standing(setting.candidate, [[speed]], Estimate(speed, speed - 0.1, speed + 0.2, 6), final=False))
        for setting, speed in zip(settings, (1.0, 1.1, 1.2, 1.4, 1.5, 1.6, 1.7, 1.5, 1.1, 1.3), strict=True)
    ]


def test_the_surface_is_that_of_the_best_g() -> None:
    grid = grid_of(surface())
    assert grid is not None
    assert (grid.guesses, grid.levels, grid.windows) == (4, [3, 5], [2, 4])
    assert (grid.speeds[0][0], grid.speeds[1]) == (1.1, [1.5, 1.7])
    assert math.isnan(grid.speeds[0][1])
    assert grid_of(surface()[-3:]) is None
    assert [(budget, speed.median) for budget, speed in curve_of(surface())] == [(2, 1.1), (4, 1.3), (8, 1.5)]


@pytest.mark.parametrize("candidates", [CANDIDATES, "auto:budget=4", "lookahead:level=3:window=2:guesses=-1"])
def test_the_picture_is_drawn(candidates: str, prompts: Path, tmp_path: Path, known_speeds: list[list[str]]) -> None:
    picture = tmp_path / "mine.png"
    result = tune(prompts, "--candidates", candidates, "--out", tmp_path / "mine.json", "--picture", picture)
    assert result.exit_code == 0, result.output
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 5000
