"""Plots of speed ratios: by task, by context, by batch. Knows findings; needs matplotlib.

Ratios to different baselines have different axes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from lade.applications.bench.methods import PLAIN
from lade.applications.bench.report.conditions import Condition
from lade.applications.bench.report.findings import Findings
from lade.applications.bench.report.rows import Row, Speed
from lade.applications.bench.report.style import Look, few, legends, looks, panels, whiskers
from lade.applications.interval import Estimate


def by_task(findings: Findings) -> Any | None:
    """A group of bars for every task; axes for every condition and baseline. None without a comparison."""
    groups = [(c, baseline) for c in findings.records for baseline in baselines(findings.of(c))]
    if not groups:
        return None
    look, tasks = looks(findings.methods), list(dict.fromkeys(row.task for row in findings.rows))
    figure, axes = panels([titled(str(condition), baseline) for condition, baseline in groups], 9, 3.4)
    for panel, (condition, baseline) in zip(axes, groups, strict=True):
        rows = [row for row in findings.of(condition) if compares(row, baseline)]
        methods = list(dict.fromkeys(row.method for row in rows))
        for place, method in enumerate(methods):
            offset, width = (place - (len(methods) - 1) / 2) * 0.8 / len(methods), 0.8 / len(methods)
            _bars(panel, look[method], [row for row in rows if row.method == method], tasks, offset, width)
        panel.axhline(1, color="black", linestyle="--", linewidth=1, label=baseline)
        panel.set_xticks(range(len(tasks)), tasks)
        estimates = [row.speed_ratio for row in rows if row.speed_ratio is not None]
        panel.set(xlabel=f"task{few(estimates)}", ylabel=ratio_to(baseline), xlim=(-0.6, len(tasks) - 0.4))
    return legends(figure)


def baselines(speeds: Sequence[Speed]) -> list[str]:
    """The baselines of the other methods, plain decoding first."""
    found = dict.fromkeys(speed.compared_with for speed in speeds if compares(speed, speed.compared_with))
    return sorted(found, key=lambda baseline: baseline != PLAIN)


def compares(speed: Speed, baseline: str) -> bool:
    return speed.compared_with == baseline != speed.method


def titled(title: str, baseline: str) -> str:
    return title if baseline == PLAIN else f"{title} · over {baseline}"


def ratio_to(baseline: str) -> str:
    return f"speed, × {baseline}{' decoding' if baseline == PLAIN else ''}"


def _bars(panel: Any, look: Look, rows: Sequence[Row], tasks: list[str], offset: float, width: float) -> None:
    """The bars of one method, with confidence intervals as whiskers."""
    found = [(tasks.index(row.task), row.speed_ratio) for row in rows]
    ratios = {at: ratio for at, ratio in found if ratio is not None}
    panel.bar(
        [at + offset for at in ratios],
        [ratio.median for ratio in ratios.values()],
        width,
        yerr=whiskers(list(ratios.values())),
        color=look.colour,
        hatch=look.hatch,
        edgecolor="white",
        error_kw={"elinewidth": 1, "capsize": 2},
        label=rows[0].method,
    )


def against_context(findings: Findings) -> Any | None:
    return _against("context", "context, tokens of the prompt", findings)


def against_batch(findings: Findings) -> Any | None:
    return _against("batch", "batch, texts decoded side by side", findings)


def _against(name: str, label: str, findings: Findings) -> Any | None:
    """A line for every method over all tasks; None if no two conditions differ in only this field."""
    groups = _groups(name, findings)
    if not groups:
        return None
    look = looks(findings.methods)
    figure, axes = panels([titled(rest, baseline) for rest, baseline in groups], 7.5, 3.4)
    for panel, ((_, baseline), members) in zip(axes, groups.items(), strict=True):
        drawn = {method: _points(method, baseline, name, members, findings) for method in findings.methods}
        for method, points in drawn.items():
            _line(panel, look[method], method, points)
        panel.axhline(1, color="black", linestyle="--", linewidth=1, label=baseline)
        values = sorted({getattr(condition, name) for every in groups.values() for condition in every})
        panel.set_xscale("log", base=2)
        panel.set_xticks(values, [f"{value:,}" for value in values])
        panel.minorticks_off()
        estimates = [estimate for points in drawn.values() for estimate in points.values()]
        panel.set(xlabel=f"{label}{few(estimates)}", ylabel=ratio_to(baseline))
    return legends(figure)


def _groups(name: str, findings: Findings) -> dict[tuple[str, str], list[Condition]]:
    """Groups of conditions that differ in only this field, by shared fields and baseline."""
    found: dict[tuple[str, str], list[Condition]] = {}
    for condition in findings.records:
        if getattr(condition, name) is not None:
            for baseline in baselines(findings.of(condition)):
                found.setdefault((condition.named(without=name), baseline), []).append(condition)
    return {group: members for group, members in found.items() if len(members) > 1}


def _points(
    method: str, baseline: str, name: str, members: Sequence[Condition], findings: Findings
) -> dict[int, Estimate]:
    points: dict[int, Estimate] = {}
    for condition in members:
        speed = findings.overall[condition].get(method)
        if speed is not None and speed.speed_ratio is not None and compares(speed, baseline):
            points[getattr(condition, name)] = speed.speed_ratio
    return points


def _line(panel: Any, look: Look, method: str, points: Mapping[int, Estimate]) -> None:
    if points:
        panel.errorbar(
            list(points),
            [ratio.median for ratio in points.values()],
            yerr=whiskers(list(points.values())),
            color=look.colour,
            marker=look.mark,
            capsize=3,
            label=method,
        )
