"""`lade tune --draft` from the command line: its tables, its file, its interrupts and its refusals."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from rich.cells import cell_len

import lade
from lade.applications import tuning
from lade.applications.bench.records import Record
from lade.applications.tune import command
from lade.models.load import load
from lade.models.shipped import STORIES

pytestmark = pytest.mark.usefixtures("one_thread", "table_folder", "default_settings")
OPENINGS = ("Once upon a time", "One day, a cat", "Tom had a red", "Lily and Ben", "The sun was", "A bird sat")
REFUSED = (
    (("--no-speed",), "--no-speed must be given with --draft"),
    (("--draft-quant", "nf4"), "--draft-quant must be given with --draft"),
    (("--draft", STORIES, "--candidates", "auto:budget=4"), "--candidates and --draft must not be given together"),
    (("--draft", STORIES, "--warm"), "--warm and --draft must not be given together"),
    (("--draft", "no/such/model"), "Invalid value for '--draft'"),
    (("--draft", STORIES, "--nodes", 65), "Invalid value for '--nodes'"),
    (("--draft", "lade-code-8M-draft"), "--draft: the draft model has another tokenizer"),
)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "stories.jsonl"
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in OPENINGS))
    return path


@pytest.fixture(scope="module")
def shortened(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The story model without its last layer, as a draft model."""
    model, tokenizer = load(STORIES)
    model.model.layers = model.model.layers[:4]
    model.config.num_hidden_layers = 4
    path = tmp_path_factory.mktemp("draft") / "short"
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def tune(prompts: Path, *arguments: object) -> Result:
    fixed = (STORIES, "--prompts", prompts, "--max-new-tokens", 12, "--threads", 1, "--device", "cpu", "--nodes", 6)
    return CliRunner().invoke(command, [str(argument) for argument in (*fixed, *arguments)])


def test_acceptance_and_widths_are_counted_without_timing(
    prompts: Path, shortened: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "run_task", lambda *_: pytest.fail("something was timed"))
    out = tmp_path / "widths.json"
    result = tune(prompts, "--draft", shortened, "--no-speed", "--out", out)
    assert result.exit_code == 0, result.output
    found = json.loads(out.read_text())
    rates = [found["acceptance"][str(k)]["median"] for k in range(1, 7)]
    assert rates == sorted(rates)
    assert 0 < rates[0] < rates[-1] <= 1
    best = next(tree for tree in found["trees"] if tree["widths"] == found["widths"])
    assert best["tokens_per_step"]["median"] == max(tree["tokens_per_step"]["median"] for tree in found["trees"])
    assert best["speed"] is None
    assert result.stdout.splitlines()[-1] == f"lade.MultiCandidate(draft, widths={tuple(found['widths'])})"
    assert max(cell_len(line) for line in result.stdout.splitlines() if line.startswith(("│", "┃"))) <= 80
    (model, tokenizer), draft = load(STORIES), load(str(shortened))[0]
    counts = []
    for text in OPENINGS:
        ids = tokenizer(text, return_tensors="pt").input_ids
        method = lade.MultiCandidate(draft, widths=tuple(found["widths"]))
        given = {"attention_mask": torch.ones_like(ids), "method": method}
        lade.generate(model, ids, **given, max_new_tokens=12, do_sample=False)
        counts.append(lade.last_stats())
    assert best["tokens_per_step"]["median"] == pytest.approx(
        sum(stats.new_tokens for stats in counts if stats) / sum(stats.steps for stats in counts if stats)
    )


def test_the_fastest_tree_is_chosen_and_an_interrupt_keeps_what_was_measured(
    prompts: Path, shortened: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One level is twice as fast as plain decoding, deeper trees are half as fast."""
    real, out, ran = tuning.run_task, tmp_path / "widths.json", list[str]()

    def run_task(model: Any, contenders: Any, task: Any, options: Any) -> Iterator[Record]:
        ran.extend(one.label for one in contenders if one.label != "plain")
        if len(ran) == 4:
            raise KeyboardInterrupt
        for record in real(model, contenders, task, options):
            speed = 1.0 if record.method == "plain" else 0.5 if "-" in record.method.partition("=")[2] else 2.0
            yield Record(**vars(record) | {"seconds": record.new_tokens / speed})

    monkeypatch.setattr(tuning, "run_task", run_task)
    arguments = ("--draft", shortened, "--nodes", 2, "--repeats", 1, "--out", out)
    first = tune(prompts, *arguments)
    assert first.exit_code == 130
    assert "holds 3 measurements; the same command continues" in first.stderr
    result = tune(prompts, *arguments)
    assert result.exit_code == 0, result.output
    assert "continues after 3 measurements" in result.stderr
    assert all(label.startswith("multi_candidate:widths=") for label in ran)
    found = json.loads(out.read_text())
    assert len(found["widths"]) == 1
    assert f"lade.MultiCandidate(draft, widths={tuple(found['widths'])})" in result.stdout
    assert "2.00× (2.00–2.00)" in result.stdout
    assert "chosen" in result.stdout


@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_what_does_not_fit_is_refused(
    arguments: tuple[object, ...], message: str, prompts: Path, tmp_path: Path
) -> None:
    result = tune(prompts, *arguments, "--out", tmp_path / "widths.json")
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert not (tmp_path / "widths.json").exists()
