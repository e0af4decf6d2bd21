"""Sample texts of a run, step by step: an untimed call of every contender on the first prompts of every task.

Knows no method by name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lade.applications.bench.records import MAX_BYTES
from lade.base.shown import invalid
from lade.files.atomic import put_in_place
from lade.files.jsonobject import json_object
from lade.files.regularfile import naming, read_text

if TYPE_CHECKING:
    from torch import Tensor

    from lade.applications.bench.trial import Trial, TrialRunner

SAMPLES = "samples.jsonl"  # in the folder of a run
PARTIAL = "\ufffd"  # a text that ends inside a character ends with it


@dataclass(frozen=True)
class Sample:
    """The text of one method on the first turn of one prompt.

    Attributes:
        temperature: 0 for greedy decoding.
        steps: text and number of tokens of every step, the prefill's first; the texts joined are the answer.
    """

    task: str
    prompt_id: str | int
    prompt: str
    temperature: float
    method: str
    steps: tuple[tuple[str, int], ...]


class StepRecorder:
    """A streamer that keeps the tokens of every step.

    lade announces steps by `begin_step`; without it, as in transformers' own methods, every `put` is a step.
    """

    def __init__(self) -> None:
        self.steps: list[list[int]] = []
        self._saw_prompt = self._announced = False

    def begin_step(self) -> None:
        self._announced = True
        self.steps.append([])

    def put(self, value: Tensor) -> None:
        if not self._saw_prompt:
            self._saw_prompt = True
            return
        if not self._announced:
            self.steps.append([])
        self.steps[-1] += value.reshape(-1).tolist()

    def end(self) -> None:
        """Nothing is held back."""


def pieces(steps: Iterable[Sequence[int]], decode: Callable[[Sequence[int]], str]) -> Iterator[tuple[str, int]]:
    """The text and the number of tokens of every step; a character's text belongs to the step that completes it."""
    tokens: list[int] = []
    known, parts = "", [step for step in steps if step]
    for place, step in enumerate(parts, 1):
        tokens += step
        text = decode(tokens)
        if text.endswith(PARTIAL) and place < len(parts):
            text = known
        yield text[len(known) :], len(step)
        known = text


def sampled(runner: TrialRunner, trial: Trial) -> list[Sample]:
    """The samples of all contenders on the only prompt of a trial."""
    style, prompt = trial.task.style, trial.rows[0].prompt
    recorders = {contender.label: StepRecorder() for contender in runner.contenders}
    runner.first_turn(trial, recorders)
    return [
        Sample(
            trial.task.name,
            prompt.id,
            prompt.text,
            trial.options.temperature,
            label,
            tuple(pieces(recorder.steps, style.text)),
        )
        for label, recorder in recorders.items()
    ]


def chosen(trials: Sequence[Trial], count: int) -> list[Trial]:
    """The first `count` prompts of every task, one by one, under the first condition of the task."""
    found: dict[str, list[Trial]] = {}
    for trial in trials:
        own = found.setdefault(trial.task.name, [])
        if trial.repeat == 0 and (not own or replace(trial.options, batch=1) == own[0].options):
            alone = replace(trial.options, batch=1)
            own += [replace(trial, options=alone, rows=(row,)) for row in trial.rows]
    return [trial for own in found.values() for trial in own[:count]]


def write_samples(path: Path, runner: TrialRunner, trials: Sequence[Trial], move: Callable[[int, int], object]) -> None:
    """Write the samples of trials with one prompt each; those that the file holds already are kept."""
    labels = {contender.label for contender in runner.contenders}
    there: dict[tuple[str, str | int], list[Sample]] = {}
    for sample in read_samples(path):
        there.setdefault((sample.task, sample.prompt_id), []).append(sample)
    keys = [(trial.task.name, trial.rows[0].prompt.id) for trial in trials]
    kept = {key: there[key] for key in keys if {sample.method for sample in there.get(key, [])} == labels}
    put_in_place(path, "".join(as_line(sample) for own in kept.values() for sample in own).encode())
    left = [trial for trial, key in zip(trials, keys, strict=True) if key not in kept]
    for done, trial in enumerate(left):
        move(done, len(left))
        lines = "".join(map(as_line, sampled(runner, trial)))
        with path.open("a", encoding="utf-8") as file:
            file.write(lines)


def as_line(sample: Sample) -> str:
    return json.dumps(asdict(sample)) + "\n"


def read_samples(path: Path) -> list[Sample]:
    """The samples of a run; none without the file. ValueError names the file, the line and the invalid field.

    An incomplete last line, left by a killed process, is none.
    """
    if not path.is_file():
        return []
    with naming(path):
        lines = read_text(path, MAX_BYTES).split("\n")[:-1]
    return [_sample(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()]


def _sample(line: str, where: str) -> Sample:
    row = json_object(line, where)
    kinds: dict[str, Any] = {
        "task": str,
        "prompt_id": (str, int),
        "prompt": str,
        "temperature": (float, int),
        "method": str,
    }
    for name, kind in kinds.items():
        if not isinstance(row.get(name), kind):
            raise invalid(f"{where}: {name}", "text" if kind is str else "a number or text", row.get(name))
    steps = row.get("steps")
    if not isinstance(steps, list) or not all(map(_is_step, steps)):
        raise invalid(f"{where}: steps", "a list of [text, tokens]", steps)
    given: dict[str, Any] = {name: row[name] for name in kinds}
    return Sample(**given, steps=tuple((text, tokens) for text, tokens in steps))


def _is_step(step: object) -> bool:
    return isinstance(step, list) and list(map(type, step)) == [str, int] and step[1] > 0
