"""A table as text, before anything says how it looks: the page, the Markdown file and the tests read the same cells."""

from collections.abc import Iterable
from dataclasses import dataclass

from lade.applications.interval import ENOUGH, Estimate

NONE = "–"
FEW = f"n < {ENOUGH}"
NO_INTERVAL = f"{FEW}: no interval, since fewer prompts or batches ran"


@dataclass(frozen=True)
class Grid:
    """Text cells under a header. The first `labels` columns name the row, the others are figures."""

    title: str
    note: str  # what the columns mean
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    labels: int = 1


def ratio(estimate: Estimate | None) -> str:
    return NONE if estimate is None else f"{estimate.median:.2f}×"


def ratio_between(estimate: Estimate | None) -> str:
    return NONE if estimate is None else f"{estimate.median:.2f}× ({interval(estimate, 2)})"


def between(estimate: Estimate | None) -> str:
    """A ratio without its sign, finer: for what hardly differs."""
    return NONE if estimate is None else f"{estimate.median:.3f} ({interval(estimate, 3)})"


def interval(estimate: Estimate, places: int) -> str:
    """From so few units that there is none, that."""
    if estimate.low is None or estimate.high is None:
        return FEW
    return f"{estimate.low:.{places}f}–{estimate.high:.{places}f}"


def versus(baselines: Iterable[str]) -> str:
    """The head of a column of speed ratios to these baselines."""
    found = set(baselines)
    return f"× {found.pop()}" if len(found) == 1 else "× baseline"


def share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else NONE


def seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.1f} ms"


def mebibytes(value: int | None) -> str:
    return NONE if value is None else f"{value / 2**20:,.1f}"
