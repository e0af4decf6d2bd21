"""Rows from records: one method on one task under one condition.

Knows records, and which methods are baselines; knows only plain decoding by name.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from lade.applications.bench.methods import METHODS, PLAIN
from lade.applications.bench.records import Record
from lade.applications.bench.report.conditions import Condition, by_condition
from lade.applications.bench.report.efficiency import efficiency
from lade.applications.bench.report.pooling import audit, drafts, plain_forward, rates, scores, texts, times
from lade.applications.bench.report.ratios import calls_of, of_prompt, over_prompts, speed_ratios
from lade.applications.interval import Estimate


@dataclass(frozen=True, kw_only=True)
class Speed:
    """The speed of one method on some of the records. Rates are pooled: sums divided by sums."""

    method: str
    runs: int
    tokens_per_step: float  # new tokens / forwards after the prefill: the mean accepted tokens
    tokens_per_second: float  # of all rows of a batch together
    tokens_per_second_range: tuple[float, float] | None  # 10th and 90th percentile of runs; None for few prompts
    compared_with: str  # the baseline: plain decoding, unless the method decodes another distribution
    speed_ratio: Estimate | None  # to the baseline; None without runs of it
    baseline_ratios: dict[str, Estimate]  # to every other baseline
    acceptance_rate: Estimate | None  # alpha: share of places with drafts where one is accepted; None without drafts
    block_efficiency: Estimate | None  # tau: `tokens_per_step` with its interval; None without drafts

    @property
    def named(self) -> str:
        """The method, and its baseline if that is not plain decoding."""
        if self.compared_with == PLAIN:
            return self.method
        return f"{self.method} ({'alone' if self.compared_with == self.method else f'over {self.compared_with}'})"


@dataclass(frozen=True, kw_only=True)
class Row(Speed):
    """One method on one task under one condition."""

    task: str
    temperature: float
    batch: int
    context: int | None
    mean_forward_tokens: float
    repeated_4grams: float  # mean share in the new tokens; repetition raises every acceptance figure
    text_measures: dict[str, float]  # of the new tokens, averaged over prompts
    log_likelihood: float | None  # mean per token under the reference model, averaged over prompts
    latency_seconds: float  # of a call; the median
    first_token_seconds: float  # the median
    model_share: float  # of the time after the prefill
    host_share: float
    drafting_share: float  # the part of the host's time spent on drafting
    draft_microseconds: float  # of drafting, per step
    draft_share: float  # of plain decoding's forward after the prefill
    peak_memory_bytes: int | None
    proposed: dict[str, int]  # by source of drafts
    verified: dict[str, int]
    accepted: dict[str, int]
    verified_by_depth: dict[int, int]
    accepted_by_depth: dict[int, int]
    accepted_lengths: dict[int, int]  # tokens emitted by a step -> number of steps
    identical: int  # runs with the baseline's tokens
    divergences: int  # greedy runs that differ from plain decoding
    unexplained: int  # divergences without a near-tie
    widest_gap: float  # largest top-2 gap at a divergence
    widest_gap_ulps: float
    scored: int
    correct: int
    plain_correct: int  # of the same prompts, turns and repeats
    score_changes: int  # answers that are right in one of the two only
    warm_seconds: float | None  # one-time cost of the warm table, if the method used it
    fallbacks: dict[str, int]  # reason -> runs with plain decoding
    prompts: dict[str, Estimate]  # speed ratio of each

    @property
    def condition(self) -> Condition:
        return Condition(self.temperature, self.batch, self.context)

    @property
    def sources(self) -> list[str]:
        """Sources of drafts, in decreasing order of accepted tokens."""
        return sorted(self.proposed, key=lambda source: -self.accepted.get(source, 0))


def summarise(records: Sequence[Record]) -> list[Row]:
    """A row for each condition, task and method; tasks and methods in order of appearance."""
    return [
        row_of(method, condition, members)
        for condition, of_condition in by_condition(records).items()
        for members in by(of_condition, lambda record: record.task).values()
        for method in by(members, lambda record: record.method)
    ]


def by(records: Iterable[Record], key: Callable[[Record], str]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(key(record), []).append(record)
    return found


def row_of(method: str, condition: Condition, records: Sequence[Record]) -> Row:
    """Args: records: those of all methods on one task under one condition."""
    own = [record for record in records if record.method == method]
    ratios = speed_ratios(records, method, own[0].compared_with)
    return Row(
        **vars(speed_of(method, records)),
        task=own[0].task,
        **vars(condition),
        repeated_4grams=sum(record.repeated_4grams for record in own) / len(own),
        **times(own, plain_forward(records)),
        **drafts(own),
        **audit(own),
        **texts(own),
        **scores(own, records),
        warm_seconds=next((record.warm_seconds for record in own if record.warm_seconds is not None), None),
        fallbacks=dict(Counter(record.fallback for record in own if record.fallback)),
        prompts={str(prompt_id): of_prompt(values) for (_, prompt_id), values in ratios.items()},
    )


def speed_of(method: str, records: Sequence[Record]) -> Speed:
    """Args: records: those of all methods under one condition, of any number of tasks."""
    own = [record for record in records if record.method == method]
    others = [label for label in baselines(records) if label != method]
    calls = calls_of(own)
    found = {label: over_prompts(speed_ratios(records, method, label), calls) for label in others}
    return Speed(
        method=method,
        runs=len(own),
        **rates(own),
        compared_with=own[0].compared_with,
        speed_ratio=over_prompts(speed_ratios(records, method, own[0].compared_with), calls),
        baseline_ratios={label: interval for label, interval in found.items() if interval is not None},
        **efficiency(own),
    )


def speeds(records: Sequence[Record]) -> dict[str, Speed]:
    """The speed of every method, in order of appearance. The records are of one condition."""
    return {method: speed_of(method, records) for method in by(records, lambda record: record.method)}


def baselines(records: Iterable[Record]) -> list[str]:
    """Labels of the baselines other than plain decoding."""
    labels = dict.fromkeys(record.method for record in records)
    named = {label: METHODS.get(label.partition(":")[0]) for label in labels if label != PLAIN}
    return [label for label, method in named.items() if method is not None and method.baseline]
