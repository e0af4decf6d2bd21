"""Options of the benchmarks that are names, or lists of them. A part of the benchmarks, not one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import click

from lade.applications.bench.suites import SUITES

SUITE = click.Choice(list(SUITES))


def names_among(allowed: Iterable[str]) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Reads names, separated by commas."""
    known = list(allowed)

    def read(context: click.Context, parameter: click.Parameter, value: str) -> list[str]:
        found = [part.strip() for part in value.split(",")]
        unknown = [name for name in found if name not in known]
        if unknown:
            raise click.BadParameter(f"must be among {', '.join(known)}, got {unknown[0]!r}")
        return found

    return read
