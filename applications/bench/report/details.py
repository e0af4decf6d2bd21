"""Tables of speed, time, memory and single prompts. Knows rows only."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lade.applications.bench.records import Record
from lade.applications.bench.report.acceptance import depths, rates, sources
from lade.applications.bench.report.rows import Row
from lade.applications.bench.report.same_text import audit, partings, scores
from lade.applications.bench.report.texts import texts
from lade.applications.bench.report.texttable import (
    FEW,
    NO_INTERVAL,
    NONE,
    TextTable,
    mebibytes,
    ratio_between,
    seconds,
    versus,
)


def detail_tables(rows: Sequence[Row], records: Sequence[Record], run: Mapping[str, Any]) -> list[TextTable]:
    """The tables of one condition, without empty ones; `run`: the contents of run.json."""
    found = (
        figures(rows),
        times(rows),
        rates(rows),
        sources(rows),
        depths(rows),
        audit(rows),
        partings(records),
        scores(rows),
        texts(rows, run),
        single_prompts(rows),
    )
    return [table for table in found if table.rows]


def figures(rows: Sequence[Row]) -> TextTable:
    others = list(dict.fromkeys(label for row in rows for label in row.baseline_ratios))
    return TextTable(
        "Tokens per step and speed",
        "S: new tokens / forwards after the prefill; T: tokens of a row in such a forward; repeated 4-grams: their "
        "share in the new tokens, since repetitive text is easy to draft; ratios with 95% intervals, to plain "
        f"decoding or to the method in brackets; {NO_INTERVAL}.",
        (
            *("Task", "Method", "runs", "S", "repeated 4-grams", "T", "tokens/s"),
            versus(row.compared_with for row in rows),
            *(f"× {label}" for label in others),
        ),
        tuple(
            (
                row.task,
                row.named,
                str(row.runs),
                f"{row.tokens_per_step:.2f}",
                f"{row.repeated_4grams:.1%}",
                f"{row.mean_forward_tokens:.1f}",
                f"{row.tokens_per_second:.1f}",
                ratio_between(row.speed_ratio),
                *(ratio_between(row.baseline_ratios.get(label)) for label in others),
            )
            for row in rows
        ),
        labels=2,
    )


def times(rows: Sequence[Row]) -> TextTable:
    return TextTable(
        "Time and memory",
        "A call and its first token: medians. Model, host and, as part of it, drafting: shares of the time after the "
        "prefill. Peak: allocated on the device during the call, weights included. Warm table: its cost, once.",
        (
            "Task",
            "Method",
            "call",
            "first token",
            "model",
            "host",
            "drafting",
            "drafting a step",
            "peak MiB",
            "warm table",
        ),
        tuple(
            (
                row.task,
                row.method,
                seconds(row.latency_seconds),
                seconds(row.first_token_seconds),
                f"{row.model_share:.1%}",
                f"{row.host_share:.1%}",
                f"{row.drafting_share:.1%}" if row.draft_microseconds else NONE,
                f"{row.draft_microseconds:.0f} µs" if row.draft_microseconds else NONE,
                mebibytes(row.peak_memory_bytes),
                NONE if row.warm_seconds is None else seconds(row.warm_seconds),
            )
            for row in rows
        ),
        labels=2,
    )


def single_prompts(rows: Iterable[Row]) -> TextTable:
    """Only methods with prompts that ran often enough for a confidence interval."""
    repeated = [row for row in rows if any(speed.low is not None for speed in row.prompts.values())]
    return TextTable(
        "Single prompts",
        "Ratios to plain decoding, or to the method in brackets, prompt by prompt, each with the 95% interval over "
        f"its runs; {FEW}: no interval, since it ran fewer times; surely slower: the upper end is below 1. "
        "summary.json has all prompts.",
        (
            "Task",
            "Method",
            "prompts",
            "surely faster",
            "surely slower",
            "slowest prompt",
            "its ratio",
            "lowest upper end",
        ),
        tuple(_single(row) for row in repeated),
        labels=2,
    )


def _single(row: Row) -> tuple[str, ...]:
    slowest = min(row.prompts, key=lambda name: row.prompts[name].median)
    return (
        row.task,
        row.named,
        str(len(row.prompts)),
        str(sum(speed.above(1) for speed in row.prompts.values())),
        str(sum(speed.below(1) for speed in row.prompts.values())),
        slowest,
        ratio_between(row.prompts[slowest]),
        f"{min(speed.high for speed in row.prompts.values() if speed.high is not None):.2f}×",
    )
