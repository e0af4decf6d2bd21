"""The halves of the prompts, and the script that measures tokens per step on one of them."""

import json
from pathlib import Path
from typing import Any

import halves
import pytest
import real_text
from click.testing import CliRunner
from stories import local

from lade.applications.bench.prompts import Prompt, read_prompts
from lade.applications.bench.promptsets import from_suites, read_ids
from lade.applications.bench.suites import SUITES

ARGUMENTS = ["--model", "stories260K", "--dtype", "float32", "--tokens", "12", "--budgets", "4,8", "--threads", "1"]


@pytest.mark.parametrize(("suite", "number"), halves.REPORTED.items())
def test_prompts_of_published_figures_tune_nothing(suite: str, number: int) -> None:
    prompts = SUITES[suite].load()
    assert {halves.half_of(prompt) for prompt in prompts[:number]} == {halves.REPORT}
    assert {halves.half_of(prompt) for prompt in prompts} == set(halves.HALVES)


def test_a_prompt_is_in_one_half_whatever_suite_it_stands_in() -> None:
    local("data", "spec_bench", "question.jsonl")
    assert json.loads(halves.FILE.read_text())[halves.TUNE] == halves.tuned()
    bench = {halves.digest(prompt) for prompt in SUITES["spec_bench"].load()}
    for suite, shared in (("mt_bench", 80), ("gsm8k", 80)):
        assert len(bench & {halves.digest(prompt) for prompt in SUITES[suite].load()}) == shared


def test_chosen_prompts_are_of_one_half(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(halves, "ASKED", ("human_eval", "gsm8k"))
    for half in halves.HALVES:
        groups = halves.chosen(half, 5)
        assert {name: len(found) for name, found in groups.items()} == {"human_eval": 5, "gsm8k": 5}
        assert {halves.half_of(prompt) for found in groups.values() for prompt in found} == {half}


def test_prompts_of_a_half_are_written_for_bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(halves, "ASKED", ("human_eval", "gsm8k"))
    path = tmp_path / "prompts.jsonl"
    result = CliRunner().invoke(halves.main, ["--prompts", str(path), "--n", "3"], catch_exceptions=False)
    found = read_prompts(path)
    assert result.stdout == f"{path}: 6 prompts\n"
    assert [prompt.category for prompt in found] == ["human_eval"] * 3 + ["gsm8k"] * 3
    assert {halves.half_of(prompt) for prompt in found} == {halves.REPORT}


def test_ids_of_a_half_are_those_of_its_prompts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(halves, "ASKED", ("human_eval", "gsm8k"))
    path = tmp_path / "ids.jsonl"
    CliRunner().invoke(halves.main, ["--ids", str(path), "--n", "3"], catch_exceptions=False)
    found = from_suites("human_eval,gsm8k", None, 0, False, read_ids(path))
    assert [{halves.digest(prompt) for prompt in source.prompts} for source in found] == [
        {halves.digest(prompt) for prompt in prompts} for prompts in halves.chosen(halves.REPORT, 3).values()
    ]


@pytest.fixture
def prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    stories = Prompt(0, ("Once upon a time",)), Prompt(1, ("Tom had a big red ball.",))
    monkeypatch.setattr(real_text, "chosen", lambda half, number: {"stories": stories[:number], half: stories[:1]})


@pytest.mark.usefixtures("prompts", "short_texts")
def test_variants_at_budgets(tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    arguments = [str(out), *ARGUMENTS, "--n", "1", "--variants", ",".join(real_text.VARIANTS)]
    result = CliRunner().invoke(real_text.main, arguments, catch_exceptions=False)
    head, *lines = out.read_text().splitlines()
    rows = [real_text.Row(**json.loads(line)) for line in lines]
    assert set(json.loads(head)["machine"]) >= {"versions", "date"}
    assert {(row.group, row.variant, row.budget) for row in rows} == {
        (group, variant, budget)
        for group in ("stories", "report")
        for variant in real_text.VARIANTS
        for budget in (4, 8)
    }
    assert all(row.new_tokens == 12 and 0 < row.steps <= row.forward_tokens <= row.steps * row.budget for row in rows)
    assert {row.variant for row in rows if row.warm_table is not None} == {"warm", "warm-device", "only-warm"}
    assert len(result.stdout.splitlines()) >= 1 + 2 * len(real_text.VARIANTS)


OLDER = """
from types import SimpleNamespace as Namespace
LookaheadConfig = Namespace
calls = []
def warm_up(model, tokenizer): calls.append("table")
def generate(model, input_ids, attention_mask, config, do_sample, max_new_tokens):
    assert not config.adapt and ("warm" in config.sources) == bool(calls)
    calls.append((config.budget, max_new_tokens, input_ids.shape[1]))
def last_stats():
    budget, tokens, prompt = calls.pop()
    calls.clear()
    return Namespace(new_tokens=tokens, steps=prompt, forward_tokens=budget, fallback=None)
"""


@pytest.mark.usefixtures("prompts")
def test_an_older_checkout_decodes_in_a_process_of_its_own(tmp_path: Path) -> None:
    out, checkout = tmp_path / "rows.jsonl", tmp_path / "older"
    for folder in ("lade", "models", "applications"):
        (checkout / folder).mkdir(parents=True)
    (checkout / "lade" / "__init__.py").write_text(OLDER)
    arguments = [str(out), *ARGUMENTS, "--n", "1", "--variants", "cold,older-warm,older-cold"]
    refused = CliRunner().invoke(real_text.main, arguments)
    assert (refused.exit_code, out.exists()) == (2, False)
    CliRunner().invoke(real_text.main, [*arguments, "--older", str(checkout)], catch_exceptions=False)
    rows = [real_text.Row(**json.loads(line)) for line in out.read_text().splitlines()[1:]]
    found = [row for row in rows if row.variant in real_text.OLDER]
    assert [row.forward_tokens for row in found] == 4 * [4, 8]
    assert len(rows) == 12
    assert all(row.new_tokens == 12 and row.steps > 1 for row in found)


@pytest.mark.usefixtures("prompts")
def test_an_interrupted_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, decode, runs = tmp_path / "rows.jsonl", real_text.run, []

    def counted(*arguments: Any) -> Any:
        runs.append(arguments)
        return decode(*arguments)

    monkeypatch.setattr(real_text, "run", counted)
    arguments = [str(out), *ARGUMENTS, "--n", "2", "--variants", "cold"]
    first = CliRunner().invoke(real_text.main, arguments, catch_exceptions=False)
    whole = out.read_text()
    assert len(runs) == 6
    out.write_text(whole[:-20])
    again = CliRunner().invoke(real_text.main, arguments, catch_exceptions=False)
    assert len(runs) == 7
    assert out.read_text() == whole
    assert first.stdout.splitlines()[-2:] == again.stdout.splitlines()[-2:]


@pytest.mark.usefixtures("prompts")
def test_a_file_of_another_run_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    CliRunner().invoke(real_text.main, [str(out), *ARGUMENTS, "--n", "1"], catch_exceptions=False)
    result = CliRunner().invoke(real_text.main, [str(out), *ARGUMENTS, "--n", "1", "--half", "tune"])
    assert result.exit_code == 1
    assert "holds a run of other settings" in result.output


@pytest.mark.parametrize("option", [("--variants", "hot"), ("--budgets", "1"), ("--budgets", "a")])
def test_wrong_options(option: tuple[str, str], tmp_path: Path) -> None:
    result = CliRunner().invoke(real_text.main, [str(tmp_path / "rows.jsonl"), *option])
    assert result.exit_code == 2
    assert "must be" in result.output
