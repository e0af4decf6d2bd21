"""Arrays to work in that are kept from call to call. Knows nothing of what they hold."""

from __future__ import annotations

from collections.abc import Callable
from operator import gt
from typing import Generic, TypeVar

Arrays = TypeVar("Arrays")


class GrowingBuffers(Generic[Arrays]):
    """Arrays that are made anew where one of their sizes grows.

    Args:
        make: from sizes.
        sizes: the first ones.
    """

    def __init__(self, make: Callable[..., Arrays], *sizes: int) -> None:
        self._make, self._sizes, self._made = make, sizes, make(*sizes)

    def of(self, *sizes: int) -> Arrays:
        """Arrays of at least these sizes."""
        if any(map(gt, sizes, self._sizes)):
            larger = tuple(map(max, sizes, self._sizes))
            self._made = self._make(*larger)
            self._sizes = larger  # last: machine code must not count on arrays that could not be made
        return self._made
