"""Computations that are interrupted by their progress."""

from collections.abc import Callable

import pytest


def interrupted_at(compute: Callable[[Callable[[int, int], None]], object], at: int) -> list[int]:
    """What a computation's progress told until `at` tokens were done."""
    told: list[int] = []

    def stop(done: int, total: int) -> None:
        told.append(done)
        if done >= at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compute(stop)
    return told
