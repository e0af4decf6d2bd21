"""Statistics of calls: tokens, steps, acceptance and seconds.

`last_stats` is local to the context (thread or task); the history is process-wide and bounded. Knows no model.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from pathlib import Path

from lade.base.arguments import check_path
from lade.base.locks import fork_safe_lock
from lade.core.tally import Acceptance, Tally, together
from lade.files.atomic import put_in_place

HISTORY = 10_000  # calls


@dataclass(frozen=True, slots=True)
class GenerationStats:
    """Statistics of one call of `generate`.

    Attributes:
        rows: sequences of the batch.
        new_tokens: tokens emitted in all rows, the first of each included.
        steps: forwards after the prefill; a forward of n rows counts n times.
        forward_tokens: nodes of all forwards, roots included.
        proposed, verified, accepted, verified_by_depth, accepted_by_depth, accepted_lengths: counts of draft tokens
            over all rows (`lade.core.tally.Acceptance`); `accepted` sums to `accepted_tokens`.
        by_row: the same counts per row of a batch; empty for one row.
        widths: nodes per row in a forward, padding included -> number of forwards.
        attention: way of attention (`lade.target.ways`) -> forwards that used it; "single" is one node without a mask,
            "static" and "static fused" are static steps, "padded" are models whose trees are padded.
        decisions: reason for the size of a tree -> how often (`lade.pace.controller`); empty where sizes are fixed.
        not_static: why steps were not static, where they would have been; `None` where they were, or nobody wanted it.
        warm_table: a digest of the warm table that was a source of drafts (`lade.warm_up`); `None`: there was none.
        prefill_seconds: the prompt's forward.
        model_seconds: forwards after the prefill. On an accelerator this is the time to launch them.
        host_seconds: everything else after the prefill.
        draft_seconds: the part of host_seconds that chose what to draft.
        fallback: why transformers' own decoding ran, or `None`; with a fallback only rows and new_tokens are counted.
    """

    rows: int
    new_tokens: int
    steps: int = 0
    forward_tokens: int = 0
    proposed: dict[str, int] = field(default_factory=dict)
    verified: dict[str, int] = field(default_factory=dict)
    accepted: dict[str, int] = field(default_factory=dict)
    verified_by_depth: dict[int, int] = field(default_factory=dict)
    accepted_by_depth: dict[int, int] = field(default_factory=dict)
    accepted_lengths: dict[int, int] = field(default_factory=dict)
    by_row: tuple[Acceptance, ...] = ()
    widths: dict[int, int] = field(default_factory=dict)
    attention: dict[str, int] = field(default_factory=dict)
    decisions: dict[str, int] = field(default_factory=dict)
    not_static: str | None = None
    warm_table: str | None = None
    prefill_seconds: float = 0.0
    model_seconds: float = 0.0
    host_seconds: float = 0.0
    draft_seconds: float = 0.0
    fallback: str | None = None

    @property
    def tokens_per_step(self) -> float:
        """new_tokens / steps; 0 without steps."""
        return self.new_tokens / self.steps if self.steps else 0.0

    @property
    def mean_forward_tokens(self) -> float:
        """Nodes per row in a forward, the root included."""
        return self.forward_tokens / self.steps if self.steps else 0.0

    @property
    def accepted_tokens(self) -> int:
        return sum(self.accepted.values())

    @property
    def acceptance_rate(self) -> float:
        """Accepted tokens per verified position, the α of speculative decoding; 0 without drafts."""
        positions = sum(self.verified_by_depth.values())
        return self.accepted_tokens / positions if positions else 0.0

    def as_dict(self) -> dict[str, object]:
        """All fields and derived figures, for JSON."""
        derived = ("tokens_per_step", "mean_forward_tokens", "accepted_tokens", "acceptance_rate")
        return asdict(self) | {name: getattr(self, name) for name in derived}

    def __str__(self) -> str:
        if self.fallback:
            return f"lade: {self.new_tokens} tokens, plain decoding ({self.fallback})"
        seconds = self.prefill_seconds + self.model_seconds + self.host_seconds
        table = f", warm table {self.warm_table}" if self.warm_table else ""
        return (
            f"lade: {self.new_tokens} tokens in {self.steps} steps, {self.tokens_per_step:.2f} tokens per step, "
            f"{self.mean_forward_tokens:.1f} tokens per forward, {self.new_tokens / max(seconds, 1e-9):.1f} tokens/s"
            f"{table}"
        )


class Timed:
    """Adds the seconds in its scope to a field of a clock. Two per step: `contextlib` takes three times as long."""

    __slots__ = ("_begin", "_clock", "_name")

    def __init__(self, clock: Clock, name: str) -> None:
        self._clock, self._name = clock, name

    def __enter__(self) -> None:
        self._begin = time.perf_counter()

    def __exit__(self, *raised: object) -> None:
        seconds = time.perf_counter() - self._begin
        setattr(self._clock, self._name, getattr(self._clock, self._name) + seconds)


class Clock:
    """Counts forwards, their tokens and seconds."""

    def __init__(self) -> None:
        self.steps = self.forward_tokens = 0
        self.prefill_seconds = self.model_seconds = self.draft_seconds = 0.0
        self.widths: Counter[int] = Counter()
        self.attention: Counter[str] = Counter()
        self.not_static: str | None = None
        self._begin = time.perf_counter()

    @contextlib.contextmanager
    def prefill(self) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self._begin = time.perf_counter()
        self.prefill_seconds = self._begin - start

    def forward(self, tokens: int, rows: int, width: int) -> Timed:
        """Count a forward and the seconds in its scope; arguments as of `count`."""
        self.count(tokens, rows, width)
        return self.waiting()

    def count(self, tokens: int, rows: int, width: int) -> None:
        """Count a forward whose seconds are counted elsewhere.

        Args:
            tokens: nodes of all rows.
            width: nodes per row, padding included.
        """
        self.steps += rows
        self.forward_tokens += tokens
        self.widths[width] += 1

    def waiting(self) -> Timed:
        """Counts the seconds in its scope as the model's."""
        return Timed(self, "model_seconds")

    def attended(self, ways: Iterable[str]) -> None:
        """Count the ways of attention that a forward used."""
        for way in ways:
            self.attention[way] += 1

    @contextlib.contextmanager
    def uncounted(self) -> Iterator[None]:
        """Forwards in this scope do not count as steps, since they decode nothing; their time counts."""
        counts = self.steps, self.forward_tokens, self.widths.copy(), self.attention.copy()
        yield
        self.steps, self.forward_tokens, self.widths, self.attention = counts

    def drafting(self) -> Timed:
        return Timed(self, "draft_seconds")

    def stop(
        self,
        tallies: Sequence[Tally],
        new_tokens: int,
        decisions: Mapping[str, int],
        warm_table: str | None = None,
    ) -> GenerationStats:
        """End the call.

        Args:
            tallies: one per row of the user's batch.
        """
        whole, rows = together(tallies).acceptance(), len(tallies)
        return GenerationStats(
            rows=rows,
            new_tokens=new_tokens,
            steps=self.steps,
            forward_tokens=self.forward_tokens,
            proposed=whole.proposed,
            verified=whole.verified,
            accepted=whole.accepted,
            verified_by_depth=whole.verified_by_depth,
            accepted_by_depth=whole.accepted_by_depth,
            accepted_lengths=whole.accepted_lengths,
            by_row=tuple(tally.acceptance() for tally in tallies) if rows > 1 else (),
            widths=dict(sorted(self.widths.items())),
            attention=dict(sorted(self.attention.items())),
            decisions=dict(decisions),
            not_static=self.not_static,
            warm_table=warm_table,
            prefill_seconds=self.prefill_seconds,
            model_seconds=self.model_seconds,
            host_seconds=max(0.0, time.perf_counter() - self._begin - self.model_seconds),
            draft_seconds=self.draft_seconds,
        )


class CompanionClock(Clock):
    """The clock of a second model in the same step: adds its time to the first model's, and counts no forwards."""

    def __init__(self, first: Clock) -> None:
        super().__init__()
        self._first = first

    @contextlib.contextmanager
    def prefill(self) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self._first._begin = time.perf_counter()
        self._first.prefill_seconds += self._first._begin - start

    def forward(self, tokens: int, rows: int, width: int) -> Timed:
        return Timed(self._first, "model_seconds")


_last: ContextVar[GenerationStats | None] = ContextVar("lade_last_stats", default=None)
_history: deque[GenerationStats] = deque(maxlen=HISTORY)
_lock = fork_safe_lock()


def record(stats: GenerationStats, debug: int = 0) -> None:
    """Set the `last_stats` of this context and append to the history; print them if `debug` is set."""
    _last.set(stats)
    with _lock:
        _history.append(stats)
    if debug:
        print(stats)


def last_stats() -> GenerationStats | None:
    """Statistics of the last call in this thread or task; `None` before the first."""
    return _last.get()


def log_history() -> list[GenerationStats]:
    """Statistics of the last 10,000 calls of this process, oldest first."""
    with _lock:
        return list(_history)


def save_log(path: str | Path) -> None:
    """Write the history as JSON lines, one object per call; an existing file is replaced atomically."""
    check_path("path", path)
    put_in_place(Path(path), "".join(json.dumps(stats.as_dict()) + "\n" for stats in log_history()).encode())
