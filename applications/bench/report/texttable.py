"""A table of text cells, before rendering: shared by the page, the Markdown file and the tests."""

from collections.abc import Iterable
from dataclasses import dataclass

from lade.applications.interval import ENOUGH, Estimate
from lade.files.regularfile import MEBIBYTE

NONE = "–"
FEW = f"n < {ENOUGH}"
NO_INTERVAL = f"{FEW}: no interval, since fewer prompts or batches ran"


@dataclass(frozen=True)
class TextTable:
    """Text cells under a header. The first `labels` columns name the row; the others are figures."""

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
    """A value with three decimals, without the × sign."""
    return NONE if estimate is None else f"{estimate.median:.3f} ({interval(estimate, 3)})"


def interval(estimate: Estimate, places: int) -> str:
    """The confidence interval; a note if there are too few units for one."""
    if estimate.low is None or estimate.high is None:
        return FEW
    return f"{estimate.low:.{places}f}–{estimate.high:.{places}f}"


def spread(value: float, range_: tuple[float, float] | None) -> str:
    """A rate and its range over the runs."""
    return f"{value:.1f} ({FEW})" if range_ is None else f"{value:.1f} ({range_[0]:.1f}–{range_[1]:.1f})"


def versus(baselines: Iterable[str]) -> str:
    """The header of a column of speed ratios to these baselines."""
    found = set(baselines)
    return f"× {found.pop()}" if len(found) == 1 else "× baseline"


def share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else NONE


def seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.1f} ms"


def mebibytes(value: int | None) -> str:
    return NONE if value is None else f"{value / MEBIBYTE:,.1f}"
