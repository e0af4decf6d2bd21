"""Draws what steps gave and what they cost. Knows findings; needs matplotlib."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from lade.applications.bench.records import Record
from lade.applications.bench.report.findings import Findings
from lade.applications.bench.report.pooling import forwards, pooled
from lade.applications.bench.report.rows import Row, baselines, by
from lade.applications.bench.report.style import Look, from_zero, legends, looks, panels

OUTLYING = 3  # times the highest median of costs: what lies above is not drawn


def accepted_lengths(findings: Findings) -> Any | None:
    """Shares of steps by the tokens that they emitted, over all tasks; None where no method that drafts told."""
    conditions = [c for c in findings.records if any(map(tells, findings.of(c)))]
    if not conditions:
        return None
    look = looks(findings.methods)
    figure, axes = panels([str(condition) for condition in conditions], 8.5, 3.4)
    for panel, condition in zip(axes, conditions, strict=True):
        rows = [row for row in findings.of(condition) if tells(row)]
        for method in dict.fromkeys(row.method for row in rows):
            own = [row for row in rows if row.method == method]
            lengths = pooled(row.accepted_lengths for row in own)
            steps = sum(lengths.values())
            shares = [lengths.get(length, 0) / steps for length in range(1, max(lengths) + 1)]
            label = _label(method, own, sum(length * count for length, count in lengths.items()) / steps)
            style = {"color": look[method].colour, "marker": look[method].mark, "label": label}
            panel.plot(range(1, len(shares) + 1), shares, **style)
        panel.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        panel.set(xlabel="tokens emitted by a step", ylabel="share of steps")
        panel.xaxis.get_major_locator().set_params(integer=True)
    from_zero(axes)
    return legends(figure)


def tells(row: Row) -> bool:
    """Of steps that could emit several tokens: plain decoding's single ones would only hide them."""
    return bool(row.proposed and row.accepted_lengths)


def _label(method: str, rows: Sequence[Row], mean: float) -> str:
    repeated = sum(row.repeated_4grams * row.runs for row in rows) / sum(row.runs for row in rows)
    return f"{method}\nmean {mean:.2f}, repeated 4-grams {repeated:.0%}"


def cost_curve(findings: Findings) -> Any | None:
    """What a forward costs against the tokens in it: a point for every run at its mean forward, and their medians.

    Where costs grow evenly with width, a run's mean forward costs the mean of its forwards. Baselines are outside the
    medians: their forwards may be compiled.
    """
    timed = {c: [r for r in records if forwards(r)] for c, records in findings.records.items()}
    timed = {condition: records for condition, records in timed.items() if records}
    if not timed:
        return None
    figure, axes = panels([str(condition) for condition in timed], 7.5, 3.4)
    curves = [curve_of(records) for records in timed.values()]
    highest = OUTLYING * max((cost for curve in curves for _, cost in curve), default=math.inf)
    for panel, records, curve in zip(axes, timed.values(), curves, strict=True):
        _costs(panel, records, looks(findings.methods))
        if curve:
            panel.plot(*zip(*curve, strict=True), color="black", linewidth=1, label="medians")
    from_zero(axes)
    for panel, records in zip(axes, timed.values(), strict=True):
        _cut(panel, [mean_forward(record)[1] for record in records], highest)
    widths = [mean_forward(record)[0] for records in timed.values() for record in records]
    axes[0].set_xlim(min(widths) / 1.2, max(widths) * 1.2)
    return legends(figure)


def curve_of(records: Sequence[Record]) -> list[tuple[float, float]]:
    """The medians of all but the baselines' runs."""
    apart = baselines(records)
    return medians([mean_forward(record) for record in records if record.method not in apart])


def _costs(panel: Any, records: Sequence[Record], look: Mapping[str, Look]) -> None:
    for method, own in by(records, lambda record: record.method).items():
        style = {"edgecolors": look[method].colour, "marker": look[method].mark, "facecolors": "none", "s": 18}
        panel.scatter(*zip(*map(mean_forward, own), strict=True), label=method, **style)
    panel.set_xscale("log", base=2)
    panel.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    panel.set(xlabel="tokens of a row in a forward", ylabel="ms per forward")


def _cut(panel: Any, costs: Sequence[float], highest: float) -> None:
    """One run that the machine held up must not flatten all others; what is not shown is told."""
    above = sum(cost > highest for cost in costs)
    if above:
        panel.set_ylim(0, highest)
        panel.text(0.99, 0.97, f"{above} of {len(costs)} runs above", ha="right", va="top", transform=panel.transAxes)


def mean_forward(record: Record) -> tuple[float, float]:
    """Tokens of a row in it, and its milliseconds."""
    count = forwards(record)
    tokens = sum(width * times for width, times in record.widths.items()) / count
    return tokens or record.mean_forward_tokens or 1.0, 1e3 * record.model_seconds / count


def medians(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Of the points in every doubling of the width, the narrowest first."""
    bins: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for width, cost in points:
        bins[round(math.log2(width))].append((width, cost))
    return [
        (median(width for width, _ in found), median(cost for _, cost in found)) for _, found in sorted(bins.items())
    ]
