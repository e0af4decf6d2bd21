"""Pooled figures of one method's runs: sums divided by sums. Knows records only."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median, quantiles
from typing import Any

from lade.applications.bench.methods import PLAIN
from lade.applications.bench.records import Record
from lade.applications.bench.report.ratios import calls_of
from lade.applications.interval import ENOUGH
from lade.applications.text_measures import averaged


def rates(own: Sequence[Record]) -> dict[str, Any]:
    new_tokens = sum(record.new_tokens for record in own)
    return {
        "tokens_per_step": quotient(new_tokens, sum(record.steps for record in own)),
        "tokens_per_second": quotient(new_tokens, sum(record.share for record in own)),
        "tokens_per_second_range": spread(own),
    }


def spread(own: Sequence[Record]) -> tuple[float, float] | None:
    """10th and 90th percentile of the runs' tokens/s; None for fewer prompts or batches than an interval needs."""
    if len(set(calls_of(own).values())) < ENOUGH:
        return None
    tenths = quantiles((record.new_tokens / record.share for record in own), n=10, method="inclusive")
    return tenths[0], tenths[-1]


def times(own: Sequence[Record], plain_forward: float) -> dict[str, Any]:
    model = sum(record.model_seconds for record in own)
    host = sum(record.host_seconds for record in own)
    drafting = sum(record.draft_seconds for record in own)
    passes = sum(forwards(record) for record in own)
    peaks = [record.peak_memory_bytes for record in own if record.peak_memory_bytes is not None]
    return {
        "mean_forward_tokens": quotient(sum((r.mean_forward_tokens or 0) * forwards(r) for r in own), passes),
        "latency_seconds": median(record.seconds for record in own),
        "first_token_seconds": median(record.prefill_seconds for record in own),
        "model_share": quotient(model, model + host),
        "host_share": quotient(host, model + host),
        "drafting_share": quotient(drafting, model + host),
        "draft_microseconds": quotient(drafting, passes) * 1e6,
        "draft_share": quotient(drafting, passes) / plain_forward,
        "peak_memory_bytes": max(peaks, default=None),
    }


def forwards(record: Record) -> int:
    """Forwards of the call after the prefill; a row of a batch may end before the last one."""
    return sum(record.widths.values()) or record.steps


def plain_forward(records: Sequence[Record]) -> float:
    """Seconds of plain decoding's forward after the prefill; infinite without one."""
    plain = [record for record in records if record.method == PLAIN]
    return quotient(sum(r.model_seconds for r in plain), sum(map(forwards, plain))) or math.inf


def drafts(own: Sequence[Record]) -> dict[str, Any]:
    names = ("proposed", "verified", "accepted", "verified_by_depth", "accepted_by_depth", "accepted_lengths")
    return {name: pooled(getattr(record, name) for record in own) for name in names}


def pooled(counts: Iterable[Mapping[Any, int]]) -> dict[Any, int]:
    return dict(sum(map(Counter, counts), Counter()))


def audit(own: Sequence[Record]) -> dict[str, Any]:
    partings = [record.parting for record in own if record.parting is not None]
    return {
        "identical": sum(record.identical_to_plain for record in own),
        "divergences": len(partings),
        "unexplained": sum(not parting["explained"] for parting in partings),
        "widest_gap": max((parting["gap"] for parting in partings), default=0.0),
        "widest_gap_ulps": max((parting["ulps"] for parting in partings), default=0.0),
    }


def scores(own: Sequence[Record], records: Sequence[Record]) -> dict[str, Any]:
    pairs = list(scored_pairs(own, records))
    return {
        "scored": len(pairs),
        "correct": sum(score for score, _ in pairs),
        "plain_correct": sum(plain for _, plain in pairs),
        "score_changes": sum(score != plain for score, plain in pairs),
    }


def scored_pairs(own: Sequence[Record], records: Sequence[Record]) -> Iterator[tuple[bool, bool]]:
    plain = {(r.prompt_id, r.turn, r.repeat): r.score for r in records if r.method == PLAIN}
    for record in own:
        beside = plain.get((record.prompt_id, record.turn, record.repeat))
        if record.score is not None and beside is not None:
            yield record.score, beside


def texts(own: Sequence[Record]) -> dict[str, Any]:
    """Measures of the texts, averaged over a prompt's turns and repeats, then over prompts."""
    by_prompt: dict[str | int, list[Record]] = {}
    for record in own:
        by_prompt.setdefault(record.prompt_id, []).append(record)
    means = [averaged(record.text_measures for record in records) for records in by_prompt.values()]
    likely = [
        averaged({"log_likelihood": record.log_likelihood} for record in records) for records in by_prompt.values()
    ]
    found = {name: value for name, value in averaged(means).items() if value is not None}
    return {"text_measures": found, "log_likelihood": averaged(likely)["log_likelihood"]}


def quotient(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
