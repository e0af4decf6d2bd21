"""`lade demo`: each side's own clock, the texts side by side, and the line at the end."""

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import torch
from click.testing import CliRunner
from rich.console import Console
from tiny import tiny_model
from unbranchable import UNBRANCHABLE

import lade
from lade.applications.demo import command
from lade.applications.demo.race import LADE, PLAIN, Run, Step, beside, timed, verdict
from lade.applications.demo.screen import FIRST, SECOND, Screen
from lade.applications.demo.sides import Lookahead, Plain, ends_of

Shipped = tuple[Any, Any]


class Given:
    """A side with given steps; each takes a second of the clock for each token, and one more at the end."""

    def __init__(self, *steps: list[int]) -> None:
        self.left, self.now = list(steps), 0.0

    def step(self) -> list[int]:
        found = self.left.pop(0) if self.left else []
        self.now += max(1, len(found))
        return found


def run_of(name: str, *steps: list[int]) -> Run:
    side = Given(*steps)
    return Run(list(timed(name, side, lambda: side.now)))


def test_a_clock_counts_its_sides_steps_alone() -> None:
    side = Given([1], [2, 3], [4])
    found = []
    for step in timed(LADE, side, lambda: side.now):
        found.append((step.tokens, step.seconds))
        side.now += 100  # as drawing does
    assert found == [([1], 1.0), ([2, 3], 3.0), ([4], 4.0)]


def test_earlier_steps_are_shown_at_their_own_seconds() -> None:
    plain = [Step(PLAIN, [number], float(number)) for number in range(1, 8)]
    now = [Step(LADE, [1], 2.0), Step(LADE, [2, 3, 4], 3.5)]
    shown = [(step.side, step.seconds, wait) for step, wait in beside(plain, iter(now))]
    assert shown == [
        (PLAIN, 1.0, 0.0),
        (PLAIN, 2.0, 0.0),
        (LADE, 2.0, 0.0),
        (PLAIN, 3.0, 0.0),
        (LADE, 3.5, 0.0),
        (PLAIN, 4.0, 0.5),
        (PLAIN, 5.0, 1.0),
        (PLAIN, 6.0, 1.0),
        (PLAIN, 7.0, 1.0),
    ]


def test_the_last_line_says_what_was_gained() -> None:
    plain = run_of(PLAIN, [1], [2], [3], [4])
    same = Run([Step(LADE, [1], 1.0), Step(LADE, [2, 3, 4], 2.0)])
    assert (
        verdict(plain, same)
        == "lade: the same 4 tokens in 2.0 s, plain decoding in 4.0 s: 2.00 times as fast, 4.00 tokens per step."
    )
    slower = Run([Step(LADE, [1, 2, 3, 4], 5.0)])
    assert "no gain here, 0.80 times as fast" in verdict(plain, slower)
    other = Run([Step(LADE, [1, 2, 9, 4], 2.0)])
    assert verdict(plain, other, True).endswith("The texts differ from token 2 on, a near-tie that rounding decides.")
    assert verdict(plain, other, False).endswith("from token 2 on, and rounding does not explain it.")
    assert verdict(plain, other).startswith("lade: 4 tokens in")


@pytest.mark.parametrize("most", [60, 1])
def test_both_sides_give_the_text_of_generate(shipped: Shipped, most: int) -> None:
    model, tokenizer = shipped
    ids = tokenizer("Once upon a time", return_tensors="pt")["input_ids"]
    found = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=most)
    expected = found[0, ids.shape[1] :].tolist()
    plain, drafted = Plain(model, ids, most), Lookahead(model, ids, most, "demo-test")
    runs = [Run(list(timed(name, side))) for name, side in ((PLAIN, plain), (LADE, drafted))]
    assert [run.tokens for run in runs] == [expected, expected]
    assert len(runs[0].steps) == len(expected)
    assert runs[0].tokens_per_step == pytest.approx(most / max(1, most - 1))
    lade.drop_pools(model, "demo-test")


def test_plain_decoding_ends_at_the_end_of_a_text(shipped: Shipped, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = shipped
    ids = tokenizer("Once upon a time", return_tensors="pt")["input_ids"]
    tokens = Run(list(timed(PLAIN, Plain(model, ids, 20)))).tokens
    monkeypatch.setattr(model.generation_config, "eos_token_id", [tokens[5], -1])
    assert Run(list(timed(PLAIN, Plain(model, ids, 20)))).tokens == tokens[: tokens.index(tokens[5]) + 1]
    monkeypatch.setattr(model.generation_config, "eos_token_id", None)
    assert ends_of(model) == frozenset()


def test_a_terminal_shows_plain_decoding_beside_lade(shipped: Shipped) -> None:
    tokenizer = shipped[1]
    prompt = tokenizer("Once upon a time")["input_ids"]
    text = tokenizer("Once upon a time, there was a cat.")["input_ids"][len(prompt) :]
    both = {PLAIN: Given(*([token] for token in text)), LADE: Given(text[:1], text[1:])}
    screen = Screen(tokenizer, prompt, "a model", list(both))
    assert screen.rule == FIRST
    file, waits = io.StringIO(), list[float]()
    console = Console(file=file, force_terminal=True, width=80, height=24, _environ={})
    command.play(both, screen, console, waits.append)  # type: ignore[arg-type]
    assert screen.rule == SECOND
    assert screen.sides[PLAIN].run.tokens == screen.sides[LADE].run.tokens == text
    shown = file.getvalue()
    assert "there was" in shown
    assert f"{len(text)} tokens, " in shown
    assert "\x1b[36m" in shown or "\x1b[32m" in shown  # the colour of tokens that one step gave


@pytest.mark.parametrize(
    ("columns", "figures", "title"),
    [
        (20, "2.00/step", "plain"),
        (50, "2.00/step, 1.0/s", "plain"),
        (68, "4 tokens, 2.00/step, 1.0/s", "plain"),
        (80, "4 tokens, 2.00/step, 1.0/s", "plain: one token per forward"),
    ],
)
def test_a_narrow_terminal_cuts_no_figure(columns: int, figures: str, title: str, shipped: Shipped) -> None:
    screen = Screen(shipped[1], [5, 6], "a model", [PLAIN, LADE])
    for name in (PLAIN, LADE):
        for step in run_of(name, [3], [4], [5, 6]).steps:
            screen.add(step)
    file = io.StringIO()
    Console(file=file, width=columns, height=24, _environ={}).print(screen)
    assert file.getvalue().count(f"─ {figures} ─") == 2
    assert f"─ {title} ─" in file.getvalue()


@pytest.fixture
def loaded(shipped: Shipped, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The model is there already, and no table is computed unless a test asks."""
    monkeypatch.setattr(command, "load_model", lambda *_, **__: shipped)
    yield shipped[0]
    lade.drop_pools(shipped[0])


def test_without_a_terminal_the_texts_are_printed_once(loaded: Any) -> None:
    result = CliRunner().invoke(
        command.command, ["stories260K", "--max-new-tokens", "40", "--threads", "1", "--no-warm"]
    )
    assert result.exit_code == 0
    last = result.stdout.splitlines()[-1]
    row = (
        r"lade: the same 40 tokens in [\d.]+ s, plain decoding in [\d.]+ s: .* times as fast, [\d.]+ tokens per step\."
    )
    assert re.fullmatch(row, last)
    assert result.stdout.count("40 tokens, ") == 2
    assert max(map(len, result.stdout.splitlines()[:-1])) <= 80


@pytest.mark.parametrize(
    ("flags", "name", "computed"),
    [([], "stories260K", 1), (["--no-warm"], "stories260K", 0), (["--warm"], "other", 1), ([], "other", 0)],
)
def test_when_a_warm_table_is_computed(
    flags: list[str], name: str, computed: int, loaded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(lade, "warm_up", lambda model, **_: calls.append(model))
    monkeypatch.setattr(command, "name_of", lambda path: name)
    flags = ["stories260K", "--max-new-tokens", "2", "--prompt", "Hello", "--threads", "1", *flags]
    result = CliRunner().invoke(command.command, flags)
    assert result.exit_code == 0, result.output
    assert len(calls) == computed
    assert ("`lade warm other`" in result.stderr) == (name == "other" and not computed)


def test_no_table_is_advised_where_the_model_decodes_no_trees(
    shipped: Shipped, table_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (kind,) = (kind for kind in UNBRANCHABLE if kind.name == "bloom")
    monkeypatch.setattr(command, "load_model", lambda *_, **__: (tiny_model(kind), shipped[1]))
    result = CliRunner().invoke(command.command, ["stories260K", "--warm", "--prompt", "Hello", "--threads", "1"])
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: model must be one that decodes draft trees (ALiBi")
    assert not table_folder.exists()


def test_a_prompt_without_room_is_refused(loaded: Any) -> None:
    flags = ["stories260K", "--no-warm", "--threads", "1", "--prompt", "x " * 600]
    result = CliRunner().invoke(command.command, flags)
    assert result.exit_code == 2
    assert "'--prompt': must have fewer than 512 tokens, got " in " ".join(result.stderr.split())


def test_fewer_tokens_than_asked_for_are_told(loaded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(model: Any, tokenizer: Any, ids: Any, most: int, heading: str) -> None:
        raise click.ClickException(f"{most} tokens")

    monkeypatch.setattr(command, "decode", stop)
    told = "the model has positions for {} new tokens, fewer than 1000\n"
    for asked in (1000, 300):
        flags = ["stories260K", "--no-warm", "--threads", "1", "--prompt", "Hello", "--max-new-tokens", str(asked)]
        result = CliRunner().invoke(command.command, flags)
        most = int(re.search(r"Error: (\d+) tokens", result.stderr).group(1))
        assert most < 512
        assert (told.format(most) in result.stderr) == (asked == 1000)
