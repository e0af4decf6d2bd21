"""Runs trials, after a warm-up of each contender, and yields their records.

Knows no method by name; prints and writes nothing.
"""

from collections.abc import Iterator, Sequence

from transformers import PreTrainedModel

from lade.applications.bench.contenders import Contender
from lade.applications.bench.records import Record
from lade.applications.bench.run import padded, run_once
from lade.applications.bench.task import RunOptions, Task, generate_arguments
from lade.applications.bench.timings import Timings
from lade.applications.bench.trial import Trial, TrialRunner, pad_of, trials_of
from lade.drafters import compiling
from lade.memory.warm import warming as warm

WARMUP_TOKENS = 16


def run_task(
    model: PreTrainedModel, contenders: Sequence[Contender], task: Task, options: RunOptions
) -> Iterator[Record]:
    """Records of all contenders, prompt by prompt and repeat by repeat; plain decoding must be one of them."""
    for records in run_trials(model, contenders, trials_of(task, options), Timings()):
        yield from records


def run_trials(
    model: PreTrainedModel,
    contenders: Sequence[Contender],
    trials: Sequence[Trial],
    timings: Timings,
    reference_model: PreTrainedModel | None = None,
) -> Iterator[list[Record]]:
    """The records of each trial; contenders that cannot decode its batch are left out.

    `reference_model` gives the log-likelihoods of the texts.
    """
    with timings.time("warm-up"):
        compiling.begin()
        compiling.wait()
        table_seconds = warm.warm_up(model).seconds if any(contender.warm for contender in contenders) else None
    before: Trial | None = None
    for trial in trials:
        able = [contender for contender in contenders if contender.refusal(model, trial.options.batch) is None]
        runner = TrialRunner(model, able, timings, table_seconds, reference_model)
        if before is None or before.task is not trial.task or before.options != trial.options:
            warm_up(runner, trial)
        yield runner.run(trial)
        before = trial


def warm_up(runner: TrialRunner, trial: Trial) -> None:
    """Untimed calls at the longest prompt: few new tokens, or a run's full length where a method needs it."""
    options, pad = trial.options, pad_of(runner.model, trial)
    filling = trial.task.style.tokens(trial.rows[0].prompt.text, special=True)
    row = (filling * (trial.task.longest // len(filling) + 1))[: trial.task.longest]
    batch = padded([row] * len(trial.rows), pad, runner.model.device)
    arguments = generate_arguments(runner.model, options, pad)
    short = arguments | {"max_new_tokens": min(WARMUP_TOKENS, options.max_new_tokens)}
    with runner.timings.time("warm-up"):
        for contender in list(runner.contenders) * options.warmup:
            run_once(runner.model, contender, batch, arguments if contender.method.full_warmup else short, options.seed)
