"""The steps of two sides, each timed alone, and what came of them. Knows tokens and seconds; no model, no terminal."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from lade.applications.demo.sides import Side

PLAIN, LADE = "plain", "lade"


@dataclass(frozen=True)
class Step:
    """One forward of a side.

    Attributes:
        tokens: that it gave.
        seconds: of this side's own clock, at its end.
    """

    side: str
    tokens: list[int]
    seconds: float


@dataclass
class Run:
    """The steps of one side so far."""

    steps: list[Step] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        return [token for step in self.steps for token in step.tokens]

    @property
    def seconds(self) -> float:
        return self.steps[-1].seconds if self.steps else 0.0

    @property
    def tokens_per_step(self) -> float:
        """New tokens per forward after the one that reads the prompt."""
        return len(self.tokens) / max(len(self.steps) - 1, 1)

    @property
    def speed(self) -> float:
        """Tokens per second of the side's own clock."""
        return len(self.tokens) / max(self.seconds, 1e-9)


def timed(name: str, side: Side, clock: Callable[[], float] = time.perf_counter) -> Iterator[Step]:
    """The steps of a side. Its clock counts the steps alone, not what is done with them."""
    seconds = 0.0
    while True:
        start = clock()
        tokens = side.step()
        seconds += clock() - start
        if not tokens:
            return
        yield Step(name, tokens, seconds)


def beside(earlier: Sequence[Step], steps: Iterator[Step]) -> Iterator[tuple[Step, float]]:
    """Steps that come now, and earlier ones among them at the same seconds of their own clock.

    Yields:
        A step, and for how many seconds to wait before it: earlier ones that are slower come after the last one.
    """
    left, now = deque(earlier), 0.0
    for step in steps:
        while left and left[0].seconds <= step.seconds:
            yield left.popleft(), 0.0
        now = step.seconds
        yield step, 0.0
    for step in left:
        yield step, step.seconds - now
        now = step.seconds


def verdict(plain: Run, drafted: Run, explained: bool | None = None) -> str:
    """One line that says what was gained.

    Args:
        explained: where the texts differ: whether rounding explains it; `None` if nobody asked.
    """
    gain = drafted.speed / plain.speed
    same = plain.tokens == drafted.tokens
    what = f"the same {len(drafted.tokens)} tokens" if same else f"{len(drafted.tokens)} tokens"
    faster = f"{gain:.2f} times as fast" if gain >= 1.005 else f"no gain here, {gain:.2f} times as fast"
    line = (
        f"lade: {what} in {drafted.seconds:.1f} s, plain decoding in {plain.seconds:.1f} s: {faster}, "
        f"{drafted.tokens_per_step:.2f} tokens per step."
    )
    return line if same else f"{line} {_parted(plain.tokens, drafted.tokens, explained)}"


def _parted(plain: Sequence[int], drafted: Sequence[int], explained: bool | None) -> str:
    shorter = min(len(plain), len(drafted))
    first = next((at for at, (a, b) in enumerate(zip(plain, drafted, strict=False)) if a != b), shorter)
    why = {True: ", a near-tie that rounding decides", False: ", and rounding does not explain it", None: ""}
    return f"The texts differ from token {first} on{why[explained]}."
