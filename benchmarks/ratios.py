"""Speeds of several ways to decode the same prompts over those of two of them. Knows no model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from rich.table import Table

BASES = ("plain", "auto, one token")
REPEATED = 0.2  # share of 4-grams of a text of plain decoding beyond which it says little: drafts are too easy there


def is_varied(share: float | None) -> bool:
    """Whether a text with this share of repeated 4-grams, `None` if it has none, says something of speed."""
    return (share or 0.0) < REPEATED


def over(ways: Mapping[str, Any], repeated: Sequence[Sequence[float | None]]) -> dict[str, Any]:
    """Per way the median over prompts of its tokens per second over a base's, of all and of varied prompts, beside its
    tokens per step.

    Args:
        ways: name -> "tokens_per_second" per prompt, and "stats" where there are any. Lists may end early.
        repeated: the share of repeated 4-grams, for the rows of each prompt; in varied ones it is below `REPEATED`.
    """
    varied = [all(map(is_varied, rows)) for rows in repeated]
    return {name: _row(way, ways, varied) for name, way in ways.items()}


def _row(way: Mapping[str, Any], ways: Mapping[str, Any], varied: Sequence[bool]) -> dict[str, Any]:
    per_step = [stats["tokens_per_step"] for stats in way.get("stats", [])]
    row: dict[str, Any] = {}
    for base in BASES:
        ratios = _ratios(way["tokens_per_second"], ways[base]["tokens_per_second"])
        kept = [ratio for ratio, keep in zip(ratios, varied, strict=False) if keep]
        row[base] = {"all": _median(ratios), "varied": _median(kept)}
    # of the gain that steps as cheap as those of one token would have
    row["of tokens per step"] = _median(_ratios(ratios, per_step))
    return row | {"tokens per step": _median(per_step)}


def _ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    return [one / other for one, other in zip(ours, theirs, strict=False)]


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def table_of(part: str, found: Mapping[str, Any]) -> Table:
    """The ratios of a part in readable form; those of varied prompts in brackets."""
    shares = [", ".join("-" if share is None else f"{share:.0%}" for share in rows) for rows in found["repetition"]]
    table = Table(title=part, caption=f"repeated 4-grams, per prompt: {'; '.join(shares)}")
    table.add_column("way")
    for column in ("tokens/s", *(f"over {base}" for base in BASES), "tokens per step", "of tokens per step"):
        table.add_column(column, justify="right")
    for name, row in found["over"].items():
        bases = [f"{_shown(row[base]['all'])} ({_shown(row[base]['varied'])})" for base in BASES]
        steps = [_shown(row[column]) for column in ("tokens per step", "of tokens per step")]
        table.add_row(name, _shown(_median(found[name]["tokens_per_second"]), 1), *bases, *steps)
    return table


def _shown(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
