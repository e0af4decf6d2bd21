"""Plots of `lade tune`: speed by W and N at the best G, and speed against budget. Needs matplotlib."""

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from lade.applications.bench.report.style import few, whiskers
from lade.applications.candidates import AUTO, LOOKAHEAD, Setting
from lade.applications.interval import Estimate
from lade.applications.outputs import check_folder_of, check_suffix
from lade.applications.search.autotune import Standing
from lade.files.atomic import put_in_place

SUFFIXES = (".pdf", ".png", ".svg")

Measured = Sequence[tuple[Setting, Standing]]


@dataclass(frozen=True)
class SpeedGrid:
    """Medians at one G: a row for each N, a column for each W, `nan` where not measured."""

    guesses: int
    levels: list[int]
    windows: list[int]
    speeds: list[list[float]]


def check_picture(path: Path | None) -> None:
    """ValueError where the file cannot be written, ImportError without matplotlib. `None` passes."""
    if path is None:
        return
    check_suffix("--picture", path, SUFFIXES)
    check_folder_of("--picture", path)
    try:
        import matplotlib  # noqa: F401 - an optional extra
    except ImportError as error:
        raise ImportError("--picture needs matplotlib; pip install 'lade-decoding[plot]'") from error


def grid_of(measured: Measured) -> SpeedGrid | None:
    """The grid at the fastest candidate's G; `None` without candidates of mode lookahead."""
    speeds = {
        (setting.preset["GUESS_SET_SIZE"], setting.preset["LEVEL"], setting.preset["WINDOW_SIZE"]): standing
        for setting, standing in reversed(measured)  # if other options differ, the better one is kept
        if setting.mode == LOOKAHEAD
    }
    if not speeds:
        return None
    guesses = max(speeds, key=lambda key: (speeds[key].final, speeds[key].speed.median))[0]
    cells = {key[1:]: standing.speed.median for key, standing in speeds.items() if key[0] == guesses}
    levels, windows = (sorted({cell[axis] for cell in cells}) for axis in (0, 1))
    rows = [[cells.get((level, window), float("nan")) for window in windows] for level in levels]
    return SpeedGrid(guesses, levels, windows, rows)


def curve_of(measured: Measured) -> list[tuple[int, Estimate]]:
    """Speed by budget, in increasing order."""
    budgets = [(setting.preset["BUDGET"], standing.speed) for setting, standing in measured if setting.mode == AUTO]
    return sorted(budgets, key=lambda point: point[0])


def draw(measured: Measured, title: str, path: Path) -> None:
    from matplotlib.figure import Figure

    grid, curve = grid_of(measured), curve_of(measured)
    parts = [part for part, found in (("grid", grid), ("curve", curve)) if found]
    figure = Figure(figsize=(5.5 * len(parts), 4.5), layout="constrained")
    figure.suptitle(title)
    axes = dict(zip(parts, figure.subplots(1, len(parts), squeeze=False)[0], strict=True))
    if grid:
        _draw_grid(figure, axes["grid"], grid)
    if curve:
        _draw_curve(axes["curve"], curve)
    drawn = BytesIO()
    figure.savefig(drawn, format=path.suffix.removeprefix("."), dpi=150, bbox_inches="tight")
    put_in_place(path, drawn.getvalue())


def _draw_grid(figure: Any, axes: Any, grid: SpeedGrid) -> None:
    image = axes.imshow(grid.speeds, origin="lower", aspect="auto", cmap="viridis")
    axes.set_xticks(range(len(grid.windows)), grid.windows)
    axes.set_yticks(range(len(grid.levels)), grid.levels)
    axes.set(xlabel="W", ylabel="N", title=f"lookahead, G = {'all' if grid.guesses == -1 else grid.guesses}")
    for row, speeds in enumerate(grid.speeds):
        for column, speed in enumerate(speeds):
            if speed == speed:  # not nan
                box = {"facecolor": "white", "alpha": 0.7, "linewidth": 0}
                axes.text(column, row, f"{speed:.2f}", ha="center", va="center", bbox=box)
    figure.colorbar(image, ax=axes, label="× plain decoding")


def _draw_curve(axes: Any, curve: list[tuple[int, Estimate]]) -> None:
    budgets = [budget for budget, _ in curve]
    medians = [speed.median for _, speed in curve]
    axes.errorbar(budgets, medians, yerr=whiskers([speed for _, speed in curve]), marker="o", capsize=3)
    axes.axhline(1, color="grey", linestyle="--", linewidth=1, label="plain decoding")
    axes.set_xscale("log", base=2)
    axes.set_xticks(budgets, budgets)
    axes.minorticks_off()
    axes.set(
        xlabel=f"budget, tokens of a forward{few([speed for _, speed in curve])}",
        ylabel="× plain decoding (95%)",
        title="auto",
    )
    axes.legend()
