"""The style of all plots: one colour and marker per method, distinguishable without colours too.

Knows only plain decoding by name.
"""

import math
from collections.abc import Sequence
from colorsys import hsv_to_rgb
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from lade.applications.bench.methods import PLAIN
from lade.applications.bench.report.texttable import FEW
from lade.applications.interval import Estimate

# The palette of Okabe and Ito, safe for colour-blind readers; yellow, pale on white, is last.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442")
MORE = ("#332288", "#882255", "#999933", "#117733", "#8C510A", "#B2DF8A", "#FF7F9F")  # then dark ones, then pale ones
GOLDEN = 0.618034  # golden ratio: spreads any number of further hues evenly
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
HATCHES = ("", "//", "..", "xx")
GREY = "#6E6E6E"
DPI = 130
TONES = 256  # palette size: a third of the bytes with the same colours


@dataclass(frozen=True)
class Look:
    colour: str
    mark: str
    hatch: str


def looks(methods: Sequence[str]) -> dict[str, Look]:
    """Styles in the order of the run, all of different colours; plain decoding is grey."""
    others = [method for method in methods if method != PLAIN]
    found = {
        method: Look(colour(place), MARKS[place % len(MARKS)], HATCHES[place // len(COLOURS) % len(HATCHES)])
        for place, method in enumerate(others)
    }
    return found | {PLAIN: Look(GREY, "o", "")}


def colour(place: int) -> str:
    known = (*COLOURS, *MORE)
    if place < len(known):
        return known[place]
    red, green, blue = hsv_to_rgb(place * GOLDEN % 1, 0.85, 0.75)
    return f"#{round(red * 255):02X}{round(green * 255):02X}{round(blue * 255):02X}"


def panels(titles: Sequence[str], width: float, height: float, sharex: bool = True) -> tuple[Any, list[Any]]:
    """A figure with axes below each other, each with a title, on one scale. Needs matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height * len(titles)), layout="constrained")
    axes = [row[0] for row in figure.subplots(len(titles), 1, squeeze=False, sharex=sharex, sharey=True)]
    for panel, title in zip(axes, titles, strict=True):
        panel.set_title(title, fontsize=10)
        panel.grid(axis="y", linewidth=0.5, alpha=0.5)
        panel.set_axisbelow(True)
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(labelbottom=True)
    return figure, axes


def from_zero(axes: Sequence[Any]) -> None:
    """Start the y-axes at 0. Call last: later plots do not widen the axes."""
    axes[0].set_ylim(bottom=0)


def legends(figure: Any) -> Any:
    """Add legends beside the axes; the figure grows by their size."""
    found = [
        panel.legend(loc="upper left", bbox_to_anchor=(1.01, 1), fontsize=8, frameon=False) for panel in figure.axes
    ]
    for legend in found:
        legend.set_in_layout(False)  # measure the axes without legends
    figure.draw_without_rendering()
    boxes = [legend.get_window_extent() for legend in found]
    missing = max(box.height for box in boxes) - min(panel.get_window_extent().height for panel in figure.axes)
    width, height = figure.get_size_inches()
    figure.set_size_inches(
        width + max(box.width for box in boxes) / figure.dpi, height + max(0.0, missing) / figure.dpi * len(found)
    )
    for legend in found:
        legend.set_in_layout(True)
    return figure


def whiskers(estimates: Sequence[Estimate]) -> list[list[float]]:
    """Lengths below and above the medians, as matplotlib's `yerr`; none for an interval of zero width."""
    return [
        [_length(estimate, estimate.median, estimate.low) for estimate in estimates],
        [_length(estimate, estimate.high, estimate.median) for estimate in estimates],
    ]


def _length(estimate: Estimate, high: float | None, low: float | None) -> float:
    if high is None or low is None or estimate.low == estimate.high:
        return math.nan
    return max(0.0, high - low)


def few(estimates: Sequence[Estimate]) -> str:
    """A suffix of an axis' name if some estimates have no interval."""
    return f" (without whiskers: {FEW}, no interval)" if any(estimate.low is None for estimate in estimates) else ""


def png(figure: Any) -> bytes:
    """The figure as PNG; deterministic for one version of matplotlib."""
    from PIL import Image

    drawn, small = BytesIO(), BytesIO()
    figure.savefig(drawn, format="png", dpi=DPI, bbox_inches="tight", pad_inches=0.1)
    Image.open(drawn).convert("RGB").quantize(TONES, dither=Image.Dither.NONE).save(small, format="png", optimize=True)
    return small.getvalue()
