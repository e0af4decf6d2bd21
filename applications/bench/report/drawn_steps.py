"""Plots of tokens per step and of the cost of forwards. Knows findings; needs matplotlib."""

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

LONG = 15  # tokens of a step; the last point holds longer steps too
OUTLIER = 3  # times the highest median cost: points above are not shown


def accepted_lengths(findings: Findings) -> Any | None:
    """Shares of steps by emitted tokens, over all tasks; None if no method that drafts reports them."""
    conditions = [c for c in findings.records if any(map(tells, findings.of(c)))]
    if not conditions:
        return None
    look = looks(findings.methods)
    figure, axes = panels([str(condition) for condition in conditions], 8, 3.4)
    for panel, condition in zip(axes, conditions, strict=True):
        rows = [row for row in findings.of(condition) if tells(row)]
        for method in dict.fromkeys(row.method for row in rows):
            own = [row for row in rows if row.method == method]
            lengths = pooled(row.accepted_lengths for row in own)
            label = _label(method, own, findings.overall[condition][method].tokens_per_step)
            style = {"color": look[method].colour, "marker": look[method].mark, "label": label}
            panel.plot(*zip(*shares_of(lengths), strict=True), **style)
        panel.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        panel.set(xlabel="tokens emitted by a step", ylabel="share of steps")
        panel.xaxis.get_major_locator().set_params(integer=True)
        panel.xaxis.set_major_formatter(lambda value, _: f"≥ {LONG}" if value == LONG else f"{value:.0f}")
    from_zero(axes)
    return legends(figure)


def shares_of(lengths: Mapping[int, int]) -> list[tuple[int, float]]:
    """(tokens, share of the steps that emit as many); the last point holds all steps of at least LONG tokens."""
    steps, longest = sum(lengths.values()), min(LONG, max(lengths))
    shares = {length: lengths.get(length, 0) / steps for length in range(1, longest + 1)}
    shares[longest] = sum(count for length, count in lengths.items() if length >= longest) / steps
    return list(shares.items())


def tells(row: Row) -> bool:
    """Whether it drafts and reports accepted lengths; plain decoding's single tokens would hide the others."""
    return bool(row.proposed and row.accepted_lengths)


def _label(method: str, rows: Sequence[Row], mean: float) -> str:
    repeated = sum(row.repeated_4grams * row.runs for row in rows) / sum(row.runs for row in rows)
    return f"{method}\nmean accepted tokens {mean:.2f},\nrepeated 4-grams {repeated:.0%}"


def cost_curve(findings: Findings) -> Any | None:
    """The cost of a forward against its tokens: a point per run, at its mean forward, and the medians.

    If the cost is linear in the width, the mean forward costs the mean of the forwards. Baselines are not in the
    medians, because their forwards may be compiled.
    """
    timed = {c: [r for r in records if forwards(r)] for c, records in findings.records.items()}
    timed = {condition: records for condition, records in timed.items() if records}
    if not timed:
        return None
    figure, axes = panels([str(condition) for condition in timed], 8, 3.4)
    curves = [curve_of(records) for records in timed.values()]
    highest = OUTLIER * max((cost for curve in curves for _, cost in curve), default=math.inf)
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
    """The medians of all runs except the baselines'."""
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
    """Cut off outliers, which would flatten all other points; a label counts them."""
    above = sum(cost > highest for cost in costs)
    if above:
        panel.set_ylim(0, highest)
        panel.text(0.99, 0.97, f"{above} of {len(costs)} runs above", ha="right", va="top", transform=panel.transAxes)


def mean_forward(record: Record) -> tuple[float, float]:
    """The mean tokens of a row per forward, and the mean milliseconds."""
    count = forwards(record)
    tokens = sum(width * times for width, times in record.widths.items()) / count
    return tokens or record.mean_forward_tokens or 1.0, 1e3 * record.model_seconds / count


def medians(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The medians of the points in every doubling of the width, in increasing order."""
    bins: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for width, cost in points:
        bins[round(math.log2(width))].append((width, cost))
    return [
        (median(width for width, _ in found), median(cost for _, cost in found)) for _, found in sorted(bins.items())
    ]
