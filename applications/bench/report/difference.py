"""Differences between two runs of a bench, prompt by prompt: B over A. Knows records only."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from lade.applications.bench.methods import PLAIN
from lade.applications.bench.records import Record
from lade.applications.bench.report.conditions import Condition, condition_of
from lade.applications.bench.report.ratios import PromptKey, calls_of, over_prompts
from lade.applications.interval import ENOUGH, Estimate

MAX_NAMED = 5  # prompts in a line


@dataclass(frozen=True)
class TrialKey:
    """What runs of A and B must share to be compared. Repeats are pooled by their median."""

    task: str
    condition: Condition
    method: str
    prompt_id: str | int
    turn: int

    @property
    def prompt(self) -> PromptKey:
        return self.task, self.prompt_id


@dataclass(frozen=True)
class Runs:
    """The repeats of a trial, and those of the method's baseline."""

    own: Mapping[int, Record]
    beside: Mapping[int, Record]

    def over(self, value: Callable[[Record], float | None]) -> float | None:
        values = [found for record in self.own.values() if (found := value(record)) is not None]
        return median(values) if values else None

    @property
    def speed_ratio(self) -> float | None:
        """The ratio to the baseline, repeat by repeat."""
        values = [
            record.tokens_per_second / self.beside[repeat].tokens_per_second
            for repeat, record in self.own.items()
            if repeat in self.beside
        ]
        return median(values) if values else None


@dataclass(frozen=True)
class Difference:
    """One method on one task, or on all, under one condition. Estimates are ratios B / A, over prompts."""

    task: str | None  # None: all of them
    method: str
    compared_with: str
    temperature: float
    batch: int
    context: int | None
    prompts: int
    turns: int
    units: int  # of the bootstrap: prompts, or whole batches
    tokens_per_step: Estimate | None
    tokens_per_second: Estimate | None
    speed_ratio: Estimate | None  # of the ratios to the baseline
    texts_changed: int  # turns
    scores_gained: int
    scores_lost: int

    @property
    def slower(self) -> bool:
        """Whether it is surely slower, by the ratio to the baseline if there is one: a slower machine slows both.

        Always false for plain decoding, which is transformers'.
        """
        decisive = self.speed_ratio or self.tokens_per_second
        return self.method != PLAIN and decisive is not None and decisive.below(1)

    @property
    def verdict(self) -> str:
        """The sure differences: those whose confidence interval excludes 1."""
        ratio = f"× {self.compared_with}"
        named = {"S": self.tokens_per_step, "tokens/s": self.tokens_per_second, ratio: self.speed_ratio}
        told = {name: estimate for name, estimate in named.items() if estimate is not None}
        sure = [
            f"{name} {'higher' if estimate.above(1) else 'lower'}"
            for name, estimate in told.items()
            if estimate.above(1) or estimate.below(1)
        ]
        if not sure and any(estimate.low is None and estimate.median != 1 for estimate in told.values()):
            return f"unsure: fewer than {ENOUGH} {'prompts' if self.units == self.prompts else 'batches'}"
        return ", ".join(sure) or "no difference"


def trials_of(records: Iterable[Record]) -> dict[TrialKey, Runs]:
    found: dict[TrialKey, dict[int, Record]] = defaultdict(dict)
    for record in records:
        trial = TrialKey(record.task, condition_of(record), record.method, record.prompt_id, record.turn)
        found[trial][record.repeat] = record
    nothing: dict[int, Record] = {}
    return {
        trial: Runs(own, found.get(replace(trial, method=next(iter(own.values())).compared_with), nothing))
        for trial, own in found.items()
    }


Pairs = Mapping[TrialKey, tuple[Runs, Runs]]


def differences(a: Mapping[TrialKey, Runs], b: Mapping[TrialKey, Runs]) -> list[Difference]:
    """By task, condition and method in the order of A; then all tasks together, if there are several."""
    pairs = {trial: (runs, b[trial]) for trial, runs in a.items() if trial in b}
    tasks: list[str | None] = list(dict.fromkeys(trial.task for trial in pairs))
    groups: dict[tuple[str | None, Condition, str], dict[TrialKey, tuple[Runs, Runs]]] = {}
    for task in [*tasks, None] if len(tasks) > 1 else tasks:
        for trial, both in pairs.items():
            if task in (trial.task, None):
                groups.setdefault((task, trial.condition, trial.method), {})[trial] = both
    return [change(task, condition, method, members) for (task, condition, method), members in groups.items()]


def change(task: str | None, condition: Condition, method: str, pairs: Pairs) -> Difference:
    scores = [score for both in pairs.values() for score in score_pairs(*both)]
    return Difference(
        task=task,
        method=method,
        compared_with=next(record.compared_with for a, _ in pairs.values() for record in a.own.values()),
        **vars(condition),
        prompts=len({trial.prompt for trial in pairs}),
        turns=len(pairs),
        units=len(set(calls_of(record for a, _ in pairs.values() for record in a.own.values()).values())),
        tokens_per_step=paired(pairs, lambda runs: runs.over(lambda record: record.tokens_per_step)),
        tokens_per_second=paired(pairs, lambda runs: runs.over(lambda record: record.tokens_per_second)),
        speed_ratio=paired(pairs, lambda runs: runs.speed_ratio),
        texts_changed=sum(text_changed(*both) for both in pairs.values()),
        scores_gained=sum(after and not before for before, after in scores),
        scores_lost=sum(before and not after for before, after in scores),
    )


def paired(pairs: Pairs, value: Callable[[Runs], float | None]) -> Estimate | None:
    """The median of B / A over prompts; None if no pair has both values."""
    ratios: dict[PromptKey, list[float]] = defaultdict(list)
    for trial, (a, b) in pairs.items():
        before, after = value(a), value(b)
        if before and after:
            ratios[trial.prompt].append(after / before)
    return over_prompts(ratios, calls_of(record for a, _ in pairs.values() for record in a.own.values()))


def score_pairs(a: Runs, b: Runs) -> list[tuple[bool, bool]]:
    both = [(a.own[repeat].score, b.own[repeat].score) for repeat in a.own if repeat in b.own]
    return [(before, after) for before, after in both if before is not None and after is not None]


def text_changed(a: Runs, b: Runs) -> bool:
    """Whether any repeat has another text. Records without a digest are compared by length."""
    both = [(a.own[repeat], b.own[repeat]) for repeat in a.own if repeat in b.own]
    return any(
        before.digest != after.digest if before.digest and after.digest else before.new_tokens != after.new_tokens
        for before, after in both
    )


def only_in(one: Mapping[TrialKey, Runs], other: Mapping[TrialKey, Runs]) -> list[str]:
    """What the other lacks: whole conditions, tasks and methods, then single prompts."""
    missing = [trial for trial in one if trial not in other]
    lines: list[str] = []
    for name in ("condition", "task", "method"):
        there = {getattr(trial, name) for trial in other}
        gone = dict.fromkeys(value for trial in one if (value := getattr(trial, name)) not in there)
        lines += [f"{name} {value}" for value in gone]
        missing = [trial for trial in missing if getattr(trial, name) not in gone]
    prompts: dict[str, dict[str, None]] = defaultdict(dict)
    for trial in missing:
        prompts[f"{trial.method} · {trial.task} · {trial.condition}"][f"{trial.prompt_id} turn {trial.turn}"] = None
    return lines + [f"{subject}: {_counted(list(found))}" for subject, found in prompts.items()]


def _counted(prompts: Sequence[str]) -> str:
    more = f" and {len(prompts) - MAX_NAMED} more" if len(prompts) > MAX_NAMED else ""
    return f"prompts {', '.join(prompts[:MAX_NAMED])}{more}"
