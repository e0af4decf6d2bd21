"""One bench: its options, and the bench ready to run. Knows neither the command line nor a method by name.

Runs and writes nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lade.applications.bench.companion import Companion, load_companion
from lade.applications.bench.contenders import Contender
from lade.applications.bench.machine import describe
from lade.applications.bench.methods import PLAIN, MethodOptions
from lade.applications.bench.promptsets import PromptSet
from lade.applications.bench.task import RunOptions, make_task
from lade.applications.bench.trial import Trial, trials_of
from lade.facts.fingerprint import fingerprint


@dataclass(frozen=True)
class Grid:
    """The varied settings; every combination runs."""

    temperature: tuple[float, ...] = (0.0,)
    batch: tuple[int, ...] = (1,)
    context: tuple[int | None, ...] = (None,)


@dataclass(frozen=True)
class Bench:
    """The options of a bench."""

    model: str
    contenders: Sequence[Contender]
    left_out: Mapping[str, str]  # methods that cannot run -> why
    sources: Sequence[PromptSet]
    out: Path
    methods: MethodOptions
    run: RunOptions
    grid: Grid
    loading: Mapping[str, Any]  # dtype, device, attn_implementation, quant
    execute: bool
    reference_model: str | None = None  # the model for log-likelihoods; None: `model`
    samples: int = 0  # prompts of every task whose texts are kept

    def options(self) -> dict[str, Any]:
        asked = asdict(self.methods) | asdict(self.run) | asdict(self.grid) | dict(self.loading)
        return asked | {"execute": self.execute, "reference_model": self.reference_model}


@dataclass(frozen=True)
class Ready:
    """A bench with its models loaded and its prompts tokenised; nothing has run yet."""

    bench: Bench
    model: PreTrainedModel
    trials: Sequence[Trial]
    contenders: Sequence[Contender]
    left_out: Mapping[str, str]
    draft: Companion | None
    reference_model: PreTrainedModel

    @property
    def methods(self) -> dict[int, list[str]]:
        """Batch size -> labels of the contenders that decode it."""
        return {
            batch: [one.label for one in self.contenders if one.refusal(self.model, batch) is None]
            for batch in self.bench.grid.batch
        }

    def head(self) -> dict[str, Any]:
        """The contents of run.json: how the results are made."""
        machine = describe(self.model.device)
        tasks = {trial.task.name: trial.task for trial in self.trials}
        return {
            "format": 1,
            "model": self.bench.model,
            "fingerprint": fingerprint(self.model),
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "draft": None if self.draft is None else fingerprint(self.draft.model),
            "reference_model": None if self.reference_model is self.model else fingerprint(self.reference_model),
            "widened_from": getattr(self.model.config, "lade_widened", None),
            "date": machine["date"],
            "out": str(self.bench.out),
            "machine": machine,
            "methods": [contender.label for contender in self.contenders],
            "left_out": dict(self.left_out),
            "tasks": {
                source.name: {
                    "prompts": len(tasks[source.name].prompts),
                    "skipped": tasks[source.name].skipped,
                    "turns_left_out": tasks[source.name].turns_left_out,
                    "digest": source.digest,
                }
                for source in self.bench.sources
            },
            "options": self.bench.options(),
        }


def prepared(bench: Bench, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Ready:
    """Load the other models and tokenise. ValueError names a method or an option that cannot run."""
    draft = draft_of(bench, tokenizer)
    able, left_out = sort_out([one.beside(draft) for one in bench.contenders], model, bench.grid.batch)
    reference = bench.reference_model
    reference_model = model if reference is None else load_reference(reference, bench.loading, tokenizer)
    trials: list[Trial] = []
    for context, source in product(bench.grid.context, bench.sources):
        options = replace(bench.run, context=context)
        task = make_task(source.name, source.prompts, model, tokenizer, options, source.score)
        trials += [trial for point in points(options, bench.grid) for trial in trials_of(task, point)]
    return Ready(bench, model, trials, able, dict(bench.left_out) | left_out, draft, reference_model)


def draft_of(bench: Bench, tokenizer: PreTrainedTokenizerBase) -> Companion | None:
    """The second model, if a contender uses it."""
    name, used = bench.methods.draft, any(contender.method.takes_draft for contender in bench.contenders)
    return load_companion(name, bench.methods.draft_quant, bench.loading, tokenizer) if name and used else None


def load_reference(name: str, loading: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """ValueError for a model with another tokenizer."""
    reference = load_companion(name, None, loading, tokenizer)
    if reference.mismatch is not None:
        raise ValueError(f"--reference-model must have MODEL's tokenizer, got {name}: {reference.mismatch}")
    return reference.model


def points(options: RunOptions, grid: Grid) -> Iterator[RunOptions]:
    for temperature, batch in product(grid.temperature, grid.batch):
        yield replace(options, temperature=temperature, batch=batch)


def sort_out(
    contenders: Sequence[Contender], model: PreTrainedModel, batches: Sequence[int]
) -> tuple[list[Contender], dict[str, str]]:
    """The contenders that run for at least one batch size, and the reasons why others do not.

    ValueError if one given by name cannot run with this model, or none runs at all.
    """
    able, left_out = [], {}
    for contender in contenders:
        unable = contender.unable(model)
        if unable is not None and contender.named:
            raise ValueError(f"method {contender.label!r}: {unable}")
        reasons = [reason for batch in batches if (reason := contender.refusal(model, batch)) is not None]
        if reasons:
            left_out[contender.label] = "; ".join(dict.fromkeys(reasons))
        if len(reasons) < len(batches):
            able.append(contender)
    idle = next((one.label for one in contenders if one.named and one not in able), None)
    if idle is not None and all(one.label == PLAIN for one in able):
        raise ValueError(f"method {idle!r}: {left_out[idle]}")
    return able, left_out
