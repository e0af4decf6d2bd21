"""What differs between two runs of a bench, prompt by prompt: B over A. Knows records only."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from lade.applications.bench.methods import PLAIN
from lade.applications.bench.records import Record
from lade.applications.bench.report.conditions import Condition, condition_of
from lade.applications.bench.report.ratios import PromptKey, calls_of, over_prompts
from lade.applications.interval import ENOUGH, Estimate

SHOWN = 5  # prompts that a line names


@dataclass(frozen=True)
class Trial:
    """What runs of A and B share to be compared. Repeats of one trial are pooled by their median."""

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
    """The repeats of a trial, and those of what the method is compared with beside them."""

    own: Mapping[int, Record]
    beside: Mapping[int, Record]

    def over(self, value: Callable[[Record], float | None]) -> float | None:
        values = [found for record in self.own.values() if (found := value(record)) is not None]
        return median(values) if values else None

    @property
    def speed_ratio(self) -> float | None:
        """To plain decoding, or to what it is compared with instead, repeat by repeat."""
        values = [
            record.tokens_per_second / self.beside[repeat].tokens_per_second
            for repeat, record in self.own.items()
            if repeat in self.beside
        ]
        return median(values) if values else None


@dataclass(frozen=True)
class Change:
    """One method on one task, or on all, under one condition. Intervals are of the ratios B / A, over prompts."""

    task: str | None  # None: all of them
    method: str
    compared_with: str
    temperature: float
    batch: int
    context: int | None
    prompts: int
    turns: int
    units: int  # that are resampled: prompts, or whole batches of them
    tokens_per_step: Estimate | None
    tokens_per_second: Estimate | None
    speed_ratio: Estimate | None  # of the ratios to what the method is compared with
    texts_changed: int  # turns
    scores_gained: int
    scores_lost: int

    @property
    def slower(self) -> bool:
        """Surely. The ratio to plain decoding decides where there is one: a slower machine slows both.

        Plain decoding itself is transformers', and never blamed.
        """
        decisive = self.speed_ratio or self.tokens_per_second
        return self.method != PLAIN and decisive is not None and decisive.below(1)

    @property
    def verdict(self) -> str:
        """What is surely different: an interval of enough prompts that leaves out 1."""
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


def trials_of(records: Iterable[Record]) -> dict[Trial, Runs]:
    found: dict[Trial, dict[int, Record]] = defaultdict(dict)
    for record in records:
        trial = Trial(record.task, condition_of(record), record.method, record.prompt_id, record.turn)
        found[trial][record.repeat] = record
    nothing: dict[int, Record] = {}
    return {
        trial: Runs(own, found.get(replace(trial, method=next(iter(own.values())).compared_with), nothing))
        for trial, own in found.items()
    }


Pairs = Mapping[Trial, tuple[Runs, Runs]]


def changes(a: Mapping[Trial, Runs], b: Mapping[Trial, Runs]) -> list[Change]:
    """By task, condition and method in the order of A; below them all tasks together, where there are several."""
    pairs = {trial: (runs, b[trial]) for trial, runs in a.items() if trial in b}
    tasks: list[str | None] = list(dict.fromkeys(trial.task for trial in pairs))
    groups: dict[tuple[str | None, Condition, str], dict[Trial, tuple[Runs, Runs]]] = {}
    for task in [*tasks, None] if len(tasks) > 1 else tasks:
        for trial, both in pairs.items():
            if task in (trial.task, None):
                groups.setdefault((task, trial.condition, trial.method), {})[trial] = both
    return [change(task, condition, method, members) for (task, condition, method), members in groups.items()]


def change(task: str | None, condition: Condition, method: str, pairs: Pairs) -> Change:
    scores = [score for both in pairs.values() for score in score_pairs(*both)]
    return Change(
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
    """The median of B / A over prompts; None where no pair has both."""
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
    """In any of the repeats. Records without a digest tell only how long their texts are."""
    both = [(a.own[repeat], b.own[repeat]) for repeat in a.own if repeat in b.own]
    return any(
        before.digest != after.digest if before.digest and after.digest else before.new_tokens != after.new_tokens
        for before, after in both
    )


def only_in(one: Mapping[Trial, Runs], other: Mapping[Trial, Runs]) -> list[str]:
    """What the other lacks: whole conditions, tasks and methods first, then prompts of what both have."""
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
    more = f" and {len(prompts) - SHOWN} more" if len(prompts) > SHOWN else ""
    return f"prompts {', '.join(prompts[:SHOWN])}{more}"
