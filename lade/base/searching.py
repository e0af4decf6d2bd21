"""How machine code searches numbers in vector registers (`lade.base.searchvectors`), as Python."""

from __future__ import annotations

from math import inf
from typing import Any

from lade.base.compiled import compiled_as
from lade.base.lanes import float_at

Array = Any  # of numbers: a numpy array, or its memoryview


def _largest_of_groups() -> Any:
    from lade.base.searchvectors import largest_of_groups

    return largest_of_groups


@compiled_as(_largest_of_groups)
def largest_of_groups(numbers: Array, groups: int, depth: int, largest: Array) -> bool:
    """The largest number of each group, and whether there is NaN (`lade.base.searchvectors.largest_of_groups`)."""
    nan = False
    for group in range(groups):
        best = -inf
        for row in range(depth):
            value = float_at(numbers, group + row * groups)
            nan |= value != value
            best = value if value > best else best
        largest[group] = best
    return nan


def _at_least() -> Any:
    from lade.base.searchvectors import at_least

    return at_least


@compiled_as(_at_least)
def at_least(numbers: Array, place: int, least: Any, lanes: int) -> int:
    """Which numbers are at least so large, as bits (`lade.base.searchvectors.at_least`)."""
    return sum(1 << lane for lane in range(lanes) if numbers[place + lane] >= least)


def _equal_to() -> Any:
    from lade.base.searchvectors import equal_to

    return equal_to


@compiled_as(_equal_to)
def equal_to(numbers: Array, place: int, value: int, lanes: int) -> int:
    """Which numbers are this one, as bits (`lade.base.searchvectors.equal_to`)."""
    return sum(1 << lane for lane in range(lanes) if numbers[place + lane] == value)


def _lowest_bit() -> Any:
    from lade.base.searchvectors import lowest_bit

    return lowest_bit


@compiled_as(_lowest_bit)
def lowest_bit(bits: int) -> int:
    """The place of the lowest bit that is set (`lade.base.searchvectors.lowest_bit`)."""
    return (bits & -bits).bit_length() - 1


def _prefetch() -> Any:
    from lade.base.searchvectors import prefetch

    return prefetch


@compiled_as(_prefetch)
def prefetch(numbers: Array, place: int) -> None:
    """Ask for numbers that will be read soon (`lade.base.searchvectors.prefetch`)."""
