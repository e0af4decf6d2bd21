"""Powers of two."""

from __future__ import annotations


def power_of_two(number: int) -> int:
    """The smallest one that is no less than a positive number."""
    return 1 << (number - 1).bit_length()
