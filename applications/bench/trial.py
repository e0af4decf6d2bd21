"""One trial: every contender on the same prompts, one after the other, turn by turn.

Later turns of a conversation follow plain decoding's answers, so that all contenders decode the same prompts. Knows
only plain decoding by name; prints and writes nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from lade.applications.bench.contenders import Contender
from lade.applications.bench.conversation import Conversation
from lade.applications.bench.measures import measures
from lade.applications.bench.methods import PLAIN
from lade.applications.bench.records import Record
from lade.applications.bench.references import REFERENCES
from lade.applications.bench.run import Batch, Run, padded, run_once
from lade.applications.bench.task import Fitting, RunOptions, Task, ask, eos_of, generate_arguments
from lade.applications.bench.text_likelihood import log_likelihood
from lade.applications.bench.timings import MEASURED, Timings
from lade.applications.text_measures import UNITS, measures_of
from lade.measure.audit import parting

Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Trial:
    """Prompts decoded side by side, once by every contender."""

    task: Task
    options: RunOptions
    rows: tuple[Fitting, ...]
    repeat: int
    number: int  # among the task's trials under these options

    @property
    def seed(self) -> int:
        return self.options.seed + self.number


def trials_of(task: Task, options: RunOptions) -> list[Trial]:
    """The trials of a task, prompt by prompt and repeat by repeat; the last batch may be smaller."""
    groups = [task.prompts[start : start + options.batch] for start in range(0, len(task.prompts), options.batch)]
    pairs = [(group, repeat) for group in groups for repeat in range(options.repeats)]
    return [Trial(task, options, group, repeat, number) for number, (group, repeat) in enumerate(pairs)]


class TrialRunner:
    """A model and the contenders that decode with it; the warm table must exist if one of them needs it.

    `reference_model` gives the log-likelihoods of the texts; None: none are computed.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        contenders: Sequence[Contender],
        timings: Timings,
        warm_seconds: float | None,
        reference_model: PreTrainedModel | None = None,
    ) -> None:
        self.model, self.contenders, self.timings, self.warm_seconds = model, contenders, timings, warm_seconds
        self.reference_model = reference_model
        self.plain = next(contender for contender in contenders if contender.label == PLAIN)

    def run(self, trial: Trial) -> list[Record]:
        """Run all turns; a record for every contender, turn and prompt."""
        conversations = [Conversation(trial.task.style) for _ in trial.rows]
        scores: dict[tuple[int, Tokens], bool | None] = {}
        records: list[Record] = []
        for turn in range(max(row.turns for row in trial.rows)):
            rows = [index for index, row in enumerate(trial.rows) if row.turns > turn]
            asked = [ask(conversations[row], trial.rows[row], turn, trial.options) for row in rows]
            batch = padded(asked, pad_of(self.model, trial), self.model.device)
            runs = self._runs(trial, batch)
            records += self._records(trial, turn, rows, batch, runs, scores)
            for row, text in zip(rows, runs[PLAIN].texts, strict=True):
                conversations[row].answered(text)
        return records

    def first_turn(self, trial: Trial, streamers: Mapping[str, Any]) -> dict[str, Run]:
        """The runs of the first turn by label, with a streamer each, which slows them."""
        asked = [ask(Conversation(trial.task.style), row, 0, trial.options) for row in trial.rows]
        return self._runs(trial, padded(asked, pad_of(self.model, trial), self.model.device), streamers)

    def _runs(self, trial: Trial, batch: Batch, streamers: Mapping[str, Any] | None = None) -> dict[str, Run]:
        """By label. The order rotates from trial to trial."""
        arguments = generate_arguments(self.model, trial.options, pad_of(self.model, trial))
        first = trial.number % len(self.contenders)
        references = self._references(trial, batch, arguments)
        runs: dict[str, Run] = {}
        for contender in [*self.contenders[first:], *self.contenders[:first]]:
            given = None if contender.reference is None else references[contender.reference]
            own = arguments if streamers is None else arguments | {"streamer": streamers[contender.label]}
            runs[contender.label] = run_once(self.model, contender, batch, own, trial.seed, given)
            self.timings.seconds[MEASURED] += runs[contender.label].forwards.seconds
        return runs

    def _references(self, trial: Trial, batch: Batch, arguments: dict[str, Any]) -> Mapping[str, list[list[int]]]:
        """Reference texts for the contenders, by name and row. Plain decoding runs once more for them, untimed."""
        wanted = {contender.reference for contender in self.contenders if contender.reference is not None}
        if not wanted:
            return {}
        size = self.model.config.get_text_config().vocab_size
        with self.timings.time("reference"):
            answers = run_once(self.model, self.plain, batch, arguments, trial.seed).texts
            return {name: [REFERENCES[name](text, size, trial.seed) for text in answers] for name in wanted}

    def _records(
        self,
        trial: Trial,
        turn: int,
        rows: Sequence[int],
        batch: Batch,
        runs: Mapping[str, Run],
        scores: dict[tuple[int, Tokens], bool | None],
    ) -> Iterator[Record]:
        for place, row in enumerate(rows):
            prompt = trial.rows[row].prompt
            partings: dict[Tokens, dict[str, Any] | None] = {}
            likely: dict[Tokens, float | None] = {}
            texts: dict[Tokens, dict[str, float]] = {}
            for contender in self.contenders:
                run = runs[contender.label]
                text = run.texts[place]
                if contender.compared_with == PLAIN and text not in partings:
                    partings[text] = self._parting(trial, batch.rows[place], runs[PLAIN].texts[place], text)
                if text not in likely:
                    likely[text] = self._log_likelihood(batch.rows[place], text)
                    texts[text] = text_measures(trial, text)
                if (row, text) not in scores:
                    scores[row, text] = self._score(trial, row, turn, text)
                yield Record(
                    method=contender.label,
                    task=trial.task.name,
                    prompt_id=prompt.id,
                    category=prompt.category,
                    turn=turn,
                    repeat=trial.repeat,
                    seed=trial.seed,
                    temperature=trial.options.temperature,
                    batch=trial.options.batch,
                    context=trial.options.context,
                    prompt_tokens=len(batch.rows[place]),
                    compared_with=contender.compared_with,
                    parting=partings[text] if contender.compared_with == PLAIN else None,
                    log_likelihood=likely[text],
                    text_measures=texts[text],
                    score=scores[row, text],
                    warm_seconds=self.warm_seconds if contender.warm else None,
                    **measures(run, place, runs[contender.compared_with], contender.method.baseline),
                )

    def _parting(self, trial: Trial, prompt: Tokens, plain: Tokens, text: Tokens) -> dict[str, Any] | None:
        """Where a greedy text differs from plain decoding's, and whether rounding explains it; None if equal."""
        if trial.options.temperature or text == plain:
            return None
        one, other = (torch.tensor([*prompt, *new]) for new in (plain, text))
        with self.timings.time("audit"):
            found = parting(self.model, one, other, prompt_length=len(prompt))
        return None if found is None else found.as_dict()

    def _log_likelihood(self, prompt: Tokens, text: Tokens) -> float | None:
        if self.reference_model is None:
            return None
        with self.timings.time("score"):
            return log_likelihood(self.reference_model, prompt, text)

    def _score(self, trial: Trial, row: int, turn: int, text: Tokens) -> bool | None:
        """The score of the last turn's answer; None for earlier turns."""
        prompt, score = trial.rows[row].prompt, trial.task.score
        if score is None or turn + 1 < len(prompt.turns):
            return None
        with self.timings.time("score"):
            return score(prompt, trial.task.style.text(text))


def text_measures(trial: Trial, text: Tokens) -> dict[str, float]:
    """Those that the text is long enough for."""
    unit = UNITS[trial.options.text_units]
    found = measures_of(unit.split(text, trial.task.style.text), unit.base)
    return {name: value for name, value in found.items() if value is not None}


def pad_of(model: PreTrainedModel, trial: Trial) -> int:
    """The padding token; masked, so any token will do."""
    pad = trial.task.style.tokenizer.pad_token_id
    return int(pad) if isinstance(pad, int) else (eos_of(model, trial.options) or [0])[0]
