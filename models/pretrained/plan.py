"""The settings of a training run, its end, and its learning rate schedule: warm-up, plateau, linear decay to zero.

Opens no file.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lade.base.shown import invalid

REPEATS = {"source": 1.0, "function": 4.0, "exercise": 16.0, "answer": 4.0}
WARM_UP = 0.02  # of the run
DECAY = 0.5
POSITIVE = ("rows", "length", "micro_rows", "held_out_rows", "learning_rate")


@dataclass(frozen=True)
class Budget:
    """The end of a run, by steps or by time; exactly one is given."""

    steps: int | None = None
    minutes: float | None = None

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.minutes is None):
            raise ValueError(f"exactly one of steps and minutes must be given, got {self.steps} and {self.minutes}")
        name, value = ("steps", self.steps) if self.minutes is None else ("minutes", self.minutes)
        if value is None or value <= 0:
            raise invalid(name, "more than 0", value)

    def progress(self, step: int, seconds: float) -> float:
        """Share of the run that is done, 1 at its end."""
        if self.steps is not None:
            return min(step / self.steps, 1.0)
        assert self.minutes is not None
        return min(seconds / (60 * self.minutes), 1.0)


def rate(progress: float) -> float:
    """Factor of the peak learning rate at this share of the run; 0 only at its end."""
    if progress < WARM_UP:
        return max(progress / WARM_UP, 0.01)
    return min(1.0, (1 - progress) / DECAY)


@dataclass(frozen=True)
class Plan:
    """`rows` of `length` tokens per step, in micro-batches of `micro_rows`; `seed` draws weights and rows.

    Weights start from `init` if given. With a `teacher` the run is a distillation, and KL has the weight `share`;
    without one, the unlikelihood of repeats has the weight `unloop`. `repeats` weighs the kinds of documents.
    """

    budget: Budget
    size: str = "target"
    init: Path | None = None
    teacher: Path | None = None
    share: float = 0.8
    unloop: float = 0.0
    repeats: Mapping[str, float] = field(default_factory=lambda: REPEATS)
    rows: int = 128
    length: int = 1024
    micro_rows: int = 8
    learning_rate: float = 3e-3
    weight_decay: float = 0.1
    seed: int = 0
    compile: bool = False
    held_out_rows: int = 32

    def __post_init__(self) -> None:
        for name in POSITIVE:
            if getattr(self, name) <= 0:
                raise invalid(name, "more than 0", getattr(self, name))
        if self.rows % self.micro_rows:
            raise invalid("micro_rows", f"a divisor of rows={self.rows}", self.micro_rows)

    @property
    def step_tokens(self) -> int:
        return self.rows * self.length

    def fixed(self) -> dict[str, Any]:
        """The settings that must be equal when a run resumes; budget and micro-batches may change."""
        names = ("size", "share", "unloop", "rows", "length", "learning_rate", "weight_decay", "seed")
        same = {name: getattr(self, name) for name in names}
        return same | {"repeats": dict(self.repeats), "distils": self.teacher is not None}
