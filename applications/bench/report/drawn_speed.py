"""Plots of speed ratios: by task, by context, by batch. Knows findings; needs matplotlib.

Ratios to different baselines have different axes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from lade.applications.bench.methods import PLAIN
from lade.applications.bench.report.conditions import Condition
from lade.applications.bench.report.findings import Findings
from lade.applications.bench.report.rows import Speed
from lade.applications.bench.report.style import Look, few, legends, looks, panels, whiskers
from lade.applications.interval import Estimate

MANY = 5  # columns whose names stand side by side


def by_task(findings: Findings) -> Any | None:
    """A group of bars for every task, or category of a single task; axes for every condition and baseline.

    None without a comparison.
    """
    groups = [(c, baseline) for c in findings.records for baseline in baselines(findings.of(c))]
    if not groups:
        return None
    look, parts = looks(findings.methods), {c: findings.parts(c) for c in findings.records}
    columns = list(dict.fromkeys(column for found in parts.values() for column in found))
    figure, axes = panels([titled(str(condition), baseline) for condition, baseline in groups], 8, 3.4)
    for panel, (condition, baseline) in zip(axes, groups, strict=True):
        _groups_of_bars(panel, look, columns, baseline, parts[condition])
    return legends(figure)


def _groups_of_bars(
    panel: Any, look: Mapping[str, Look], columns: list[str], baseline: str, parts: Mapping[str, Mapping[str, Speed]]
) -> None:
    compared = {(column, m): s for column, found in parts.items() for m, s in found.items() if compares(s, baseline)}
    methods, estimates = list(dict.fromkeys(method for _, method in compared)), list[Estimate]()
    for place, method in enumerate(methods):
        offset, width = (place - (len(methods) - 1) / 2) * 0.8 / len(methods), 0.8 / len(methods)
        own = {columns.index(column): speed.speed_ratio for (column, m), speed in compared.items() if m == method}
        ratios = {at: ratio for at, ratio in own.items() if ratio is not None}
        estimates += ratios.values()
        _bars(panel, look[method], method, ratios, offset, width)
    panel.axhline(1, color="black", linestyle="--", linewidth=1, label=baseline)
    turned = {"rotation": 25, "ha": "right", "rotation_mode": "anchor"} if len(columns) > MANY else {}
    panel.set_xticks(range(len(columns)), columns, **turned)
    panel.set(xlabel=f"task{few(estimates)}", ylabel=ratio_to(baseline), xlim=(-0.6, len(columns) - 0.4))


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


def _bars(panel: Any, look: Look, method: str, ratios: Mapping[int, Estimate], offset: float, width: float) -> None:
    """The bars of one method, with confidence intervals as whiskers."""
    panel.bar(
        [at + offset for at in ratios],
        [ratio.median for ratio in ratios.values()],
        width,
        yerr=whiskers(list(ratios.values())),
        color=look.colour,
        hatch=look.hatch,
        edgecolor="white",
        error_kw={"elinewidth": 1, "capsize": 2},
        label=method,
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
    figure, axes = panels([titled(rest, baseline) for rest, baseline in groups], 8, 3.4)
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
