"""Runs trial after trial, each contender warmed up first, and yields their records.

Knows no method by name; prints and writes nothing.
"""

from collections.abc import Iterator, Sequence

from transformers import PreTrainedModel

from lade.applications.bench.contenders import Contender
from lade.applications.bench.ledger import Ledger
from lade.applications.bench.records import Record
from lade.applications.bench.run import padded, run_once
from lade.applications.bench.task import RunOptions, Task, generate_arguments
from lade.applications.bench.trial import Stage, Trial, pad_of, trials_of
from lade.memory.warm import warming as warm

WARMUP_TOKENS = 16


def run_task(
    model: PreTrainedModel, contenders: Sequence[Contender], task: Task, options: RunOptions
) -> Iterator[Record]:
    """Records of all contenders, one prompt and repeat after the other; plain decoding must be among them."""
    for records in run_trials(model, contenders, trials_of(task, options), Ledger()):
        yield from records


def run_trials(
    model: PreTrainedModel,
    contenders: Sequence[Contender],
    trials: Sequence[Trial],
    ledger: Ledger,
    judge: PreTrainedModel | None = None,
) -> Iterator[list[Record]]:
    """The records of each trial; contenders that cannot decode its batch are left out of it.

    `judge` is the model that is asked how likely it finds the texts.
    """
    with ledger.time("warm-up"):
        table_seconds = warm.warm_up(model).seconds if any(contender.warm for contender in contenders) else None
    before: Trial | None = None
    for trial in trials:
        able = [contender for contender in contenders if contender.refusal(model, trial.options.batch) is None]
        stage = Stage(model, able, ledger, table_seconds, judge)
        if before is None or before.task is not trial.task or before.options != trial.options:
            warm_up(stage, trial)
        yield stage.play(trial)
        before = trial


def warm_up(stage: Stage, trial: Trial) -> None:
    """Some tokens behind the longest prompt, untimed; as many as a run may have for those whom length concerns."""
    options, pad = trial.options, pad_of(stage.model, trial)
    filling = trial.task.style.tokens(trial.rows[0].prompt.text, special=True)
    row = (filling * (trial.task.longest // len(filling) + 1))[: trial.task.longest]
    batch = padded([row] * len(trial.rows), pad, stage.model.device)
    arguments = generate_arguments(stage.model, options, pad)
    short = arguments | {"max_new_tokens": min(WARMUP_TOKENS, options.max_new_tokens)}
    with stage.ledger.time("warm-up"):
        for contender in list(stage.contenders) * options.warmup:
            run_once(stage.model, contender, batch, arguments if contender.method.settles else short, options.seed)
