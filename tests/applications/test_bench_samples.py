"""Sample texts of a bench: which prompts, the tokens of every step, going on, and how the page shows them."""

import json
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from benchtools import PROMPTS, asked
from handmade import HEAD, drafting, record
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lade.applications.bench.report.document import document_of
from lade.applications.bench.report.findings import find
from lade.applications.bench.report.page import page
from lade.applications.bench.report.results import Results
from lade.applications.bench.samples import Sample, StepRecorder, as_line, chosen, pieces, read_samples, write_samples
from lade.applications.bench.task import RunOptions, make_task
from lade.applications.bench.timings import Timings
from lade.applications.bench.trial import TrialRunner, trials_of

pytestmark = pytest.mark.usefixtures("one_thread")

Story = tuple[PreTrainedModel, PreTrainedTokenizerBase]
OPTIONS = RunOptions(max_new_tokens=24, repeats=2, batch=2)


def test_samples_are_the_texts_of_all_methods_step_by_step(shipped: Story, tmp_path: Path) -> None:
    """With announced steps (lookahead), with steps of several tokens at once (prompt_lookup), and one by one."""
    runner = TrialRunner(shipped[0], asked("lookahead,prompt_lookup"), Timings(), None)
    task = make_task("hand", PROMPTS, *shipped, OPTIONS)
    path, trials = tmp_path / "samples.jsonl", chosen(trials_of(task, OPTIONS), 2)
    write_samples(path, runner, trials, Mock())
    samples = read_samples(path)
    assert [(sample.prompt_id, sample.method) for sample in samples] == [
        (prompt, method) for prompt in (0, 1) for method in ("plain", "lookahead", "prompt_lookup")
    ]
    assert samples[0].prompt == PROMPTS[0].text
    for first in (0, 3):
        plain, *others = samples[first : first + 3]
        assert [tokens for _, tokens in plain.steps] == [1] * 24
        for other in others:
            assert sum(tokens for _, tokens in other.steps) == 24
            assert "".join(text for text, _ in other.steps) == "".join(text for text, _ in plain.steps)
        assert len(others[0].steps) < 24


def test_what_the_file_holds_is_kept_and_the_rest_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def sampled(runner: Mock, trial: Mock) -> list[Sample]:
        made.append(trial.rows[0].prompt.id)
        return [Sample("hand", trial.rows[0].prompt.id, "", 0.0, one.label, (("new", 1),)) for one in runner.contenders]

    monkeypatch.setattr("lade.applications.bench.samples.sampled", sampled)
    path, methods = tmp_path / "samples.jsonl", ("plain", "fast")
    whole = [Sample("hand", "a", "", 0.0, method, (("old", 1),)) for method in methods]
    part = [Sample("hand", "b", "", 0.0, "plain", (("old", 1),)), Sample("gone", "a", "", 0.0, "plain", (("old", 1),))]
    cut = as_line(part[0])[:-9]  # as a killed process leaves it
    path.write_text("".join(map(as_line, whole + part)) + cut)
    contenders, trials = [Mock(label=method) for method in methods], [Mock(), Mock()]
    for trial, prompt in zip(trials, "ab", strict=True):
        trial.task.name, trial.rows = "hand", [Mock()]
        trial.rows[0].prompt.id = prompt
    write_samples(path, Mock(contenders=contenders), trials, Mock())
    assert made == ["b"]
    assert [(sample.prompt_id, sample.steps[0][0]) for sample in read_samples(path)] == [
        ("a", "old"), ("a", "old"), ("b", "new"), ("b", "new"),
    ]  # fmt: skip


def test_the_first_prompts_of_every_task_are_chosen_one_by_one(shipped: Story) -> None:
    tasks = [make_task(name, PROMPTS, *shipped, OPTIONS) for name in ("one", "two")]
    points = [replace(OPTIONS, temperature=temperature) for temperature in (0.0, 1.0)]
    trials = [trial for task in tasks for point in points for trial in trials_of(task, point)]
    found = chosen(trials, 2)
    assert [(trial.task.name, [row.prompt.id for row in trial.rows]) for trial in found] == [
        ("one", [0]), ("one", [1]), ("two", [0]), ("two", [1]),
    ]  # fmt: skip
    assert {(trial.options.batch, trial.options.temperature, trial.repeat) for trial in found} == {(1, 0.0, 0)}
    assert chosen(trials, 0) == []


@given(st.lists(st.lists(st.sampled_from("abé€🙂"), max_size=3), max_size=6))
def test_pieces_are_the_whole_text_with_all_tokens(words: list[list[str]]) -> None:
    """Tokens are bytes here, so that steps end inside characters."""
    coded = "".join(map("".join, words)).encode()
    steps = [list(coded[start : start + 3]) for start in range(0, len(coded), 3)]
    found = list(pieces([[], *steps], lambda tokens: bytes(tokens).decode(errors="replace")))
    assert "".join(text for text, _ in found) == coded.decode()
    assert [tokens for _, tokens in found] == [len(step) for step in steps]


def test_every_put_is_a_step_unless_steps_are_announced() -> None:
    plain, announced = StepRecorder(), StepRecorder()
    for recorder in (plain, announced):
        recorder.put(torch.tensor([[7, 7, 7]]))  # the prompt
    plain.put(torch.tensor([1, 2]))
    plain.put(torch.tensor([3]))
    for step in ([1, 2], [3]):
        announced.begin_step()
        for token in step:
            announced.put(torch.tensor([token]))
    assert plain.steps == announced.steps == [[1, 2], [3]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": None}, "task must be text, got None"),
        ({"prompt_id": 1.5}, "prompt_id must be a number or text, got 1.5"),
        ({"steps": [["a", 0]]}, "steps must be a list of [text, tokens], got"),
        ({"steps": [["a"]]}, "steps must be a list of [text, tokens], got"),
    ],
)
def test_a_damaged_sample_is_named(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    good = json.loads(as_line(Sample("hand", 0, "Why?", 0.0, "plain", (("So", 1),))))
    path.write_text(json.dumps(good) + "\n" + json.dumps(good | changes) + "\n")
    with pytest.raises(ValueError, match=r"samples\.jsonl:2: ") as raised:
        read_samples(path)
    assert message in str(raised.value)


def test_the_page_shows_plain_decoding_beside_the_fastest_method() -> None:
    records = [record("plain", 0, 4.0), drafting("slow", 0, 2.0), drafting("fast", 0, 1.0)]
    steps = (("One", 1), (" <two>", 2), (" four", 3), (" five", 1), (" seven", 2))
    samples = [Sample("hand", 0, "Count & write", 0.0, method, steps) for method in ("slow", "fast", "plain")]
    text = page(document_of(find(Results(Path(), HEAD, records, samples)), [], {}))
    shown, folded = text.split("<summary>Other methods</summary>")
    assert shown.index("plain: 9 tokens, 5 forwards") < shown.index("fast: 9 tokens, 5 forwards")
    assert "slow: 9 tokens, 5 forwards" in folded
    assert "Count &amp; write" in shown
    assert (
        '<span>One</span><span class="even" title="2 tokens"> &lt;two&gt;</span><span class="odd" title="3 tokens"> '
        'four</span><span> five</span><span class="even" title="2 tokens"> seven</span>'
    ) in folded
