"""Plots of speed and acceptance rate against an option, if a run has several values of it. Needs matplotlib.

Knows findings and the syntax of labels; knows only plain decoding by name.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lade.applications.bench.methods import PLAIN
from lade.applications.bench.report.conditions import Condition
from lade.applications.bench.report.findings import Findings
from lade.applications.bench.report.rows import Speed
from lade.applications.bench.report.style import GREY, few, from_zero, legends, looks, panels, whiskers

TREE = "widths"  # the option with the candidates after each node


@dataclass(frozen=True)
class Line:
    """Settings of one method that differ in one option only."""

    name: str  # the method and the shared settings
    option: str
    labels: Mapping[float, str]  # value -> label


def settings_of(label: str) -> tuple[str, dict[str, str]]:
    name, *settings = label.split(":")
    return name, dict(setting.partition("=")[::2] for setting in settings)


def lines_of(labels: Iterable[str]) -> list[Line]:
    """The numeric options that have several values with all other options equal."""
    found: dict[tuple[str, str], dict[float, str]] = {}
    for label in labels:
        name, settings = settings_of(label)
        for option, value in settings.items():
            number = _number(value)
            if number is not None:
                rest = [f"{other}={given}" for other, given in settings.items() if other != option]
                found.setdefault((option, ":".join([name, *rest])), {})[number] = label
    return [
        Line(name, option, dict(sorted(values.items()))) for (option, name), values in found.items() if len(values) > 1
    ]


def _number(value: str) -> float | None:
    try:
        return float(value)
    except ValueError:
        return None


def runtime(findings: Findings) -> Any | None:
    """Milliseconds per new token against every varied option, all tasks together; None without one."""
    lines = lines_of(findings.methods)
    wanted = [(c, option) for c in findings.records for option in dict.fromkeys(line.option for line in lines)]
    if not wanted:
        return None
    look, first = looks(findings.methods), dict[str, Any]()
    figure, axes = panels([f"{option} · {condition}" for condition, option in wanted], 8, 3.4, sharex=False)
    for panel, (condition, option) in zip(axes, wanted, strict=True):
        if option in first:
            panel.sharex(first[option])
        first.setdefault(option, panel)
        speeds = findings.overall[condition]
        for line in lines:
            points = {value: cost(speeds[label]) for value, label in line.labels.items() if label in speeds}
            if line.option == option and points:
                own = look[next(iter(line.labels.values()))]
                style = {"color": own.colour, "marker": own.mark, "label": line.name}
                panel.plot(list(points), list(points.values()), **style)
        if PLAIN in speeds:
            panel.axhline(cost(speeds[PLAIN]), color=GREY, linestyle="--", linewidth=1, label=PLAIN)
        panel.set(xlabel=option, ylabel="ms per new token")
    from_zero(axes)
    return legends(figure)


def cost(speed: Speed) -> float:
    """Milliseconds per new token."""
    return 1e3 / speed.tokens_per_second


def acceptance(findings: Findings) -> Any | None:
    """The acceptance rate against the candidates after the root; None with fewer than two trees."""
    trees = [label for label in findings.methods if TREE in settings_of(label)[1]]
    conditions = [c for c in findings.records if len(_rated(trees, findings, c)) > 1]
    if not conditions:
        return None
    names = {_family(label): label for label in reversed(trees)}  # the first label
    look = looks(findings.methods)
    figure, axes = panels([str(condition) for condition in conditions], 8, 3.4)
    for panel, condition in zip(axes, conditions, strict=True):
        rated = _rated(trees, findings, condition)
        for name, leading in reversed(names.items()):
            points = sorted((*widths_of(label), rated[label]) for label in rated if _family(label) == name)
            _tree_line(panel, name, look[leading], points)
        panel.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        panel.set(xlabel=f"k, candidates after the root{few(list(rated.values()))}", ylabel="acceptance rate α")
        panel.xaxis.get_major_locator().set_params(integer=True)
    return legends(figure)


def _tree_line(panel: Any, name: str, look: Any, points: list[Any]) -> None:
    """One line; each point is labelled with the tree's widths."""
    if not points:
        return
    first, rates = [point[0] for point in points], [point[-1] for point in points]
    style = {"color": look.colour, "marker": look.mark, "capsize": 3, "label": name}
    panel.errorbar(first, [rate.median for rate in rates], yerr=whiskers(rates), **style)
    for _, text, rate in points:
        panel.annotate(text, (int(text.split("-")[0]), rate.median), (4, 4), textcoords="offset points", fontsize=7)


def widths_of(label: str) -> tuple[int, str]:
    """Candidates after the root, and the whole tree's widths."""
    text = settings_of(label)[1][TREE]
    return int(text.split("-")[0]), text


def _family(label: str) -> str:
    """The shared part of a line's trees: the method, its other settings, and the depth."""
    name, settings = settings_of(label)
    depth = len(settings.pop(TREE).split("-"))
    return ":".join([name, *(f"{option}={value}" for option, value in settings.items())]) + f", depth {depth}"


def _rated(trees: list[str], findings: Findings, condition: Condition) -> dict[str, Any]:
    speeds = findings.overall[condition]
    rates = {label: speeds[label].acceptance_rate for label in trees if label in speeds}
    return {label: rate for label, rate in rates.items() if rate is not None}
