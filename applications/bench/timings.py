"""Time spent by a bench itself, to know its overhead. Knows no model."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

MEASURED = "generate"  # inside the recorded calls
SEPARATE = ("warm-up", "reference", "audit", "score")  # runs and checks outside the recorded calls


class Timings:
    """Seconds by purpose."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def time(self, purpose: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[purpose] += time.perf_counter() - start

    def summary(self, loop: float) -> dict[str, float]:
        """Seconds by purpose, of a loop that took `loop` seconds; `overhead`: the rest over the measured time."""
        measured = self.seconds[MEASURED]
        own = loop - measured - sum(self.seconds[what] for what in SEPARATE)
        rounded = {what: round(self.seconds[what], 4) for what in (MEASURED, *SEPARATE)}
        return rounded | {"loop": round(loop, 4), "overhead": round(own / measured, 6) if measured else 0.0}
