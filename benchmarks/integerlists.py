"""Options of the benchmarks that are lists of integers."""

from __future__ import annotations

from collections.abc import Callable

import click


def integers_from(least: int) -> Callable[[click.Context, click.Parameter, str], list[int]]:
    """Reads integers of at least `least`, separated by commas."""
    what = "positive integers" if least == 1 else f"integers of at least {least}"

    def read(context: click.Context, parameter: click.Parameter, value: str) -> list[int]:
        try:
            found = [int(part) for part in value.split(",")]
        except ValueError:
            found = []
        if not found or min(found) < least:
            raise click.BadParameter(f"must be {what}, separated by commas, got {value!r}")
        return found

    return read


positive_integers = integers_from(1)
