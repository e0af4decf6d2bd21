"""Progress of a run: a bar in a terminal, a line every some seconds elsewhere, and a log file.

Keeps the run's clock. Knows no model.
"""

import json
import time
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

LINES_APART = 10.0  # seconds


class Report:
    """Context of a run. `file` gets a JSON line per step and held-out loss; `before` are seconds of earlier parts."""

    def __init__(self, file: Path, before: float = 0.0, console: Console | None = None) -> None:
        self._file, self._before, self._began = file, before, time.monotonic()
        self._console = console or Console(highlight=False)
        self._bar = Progress(
            *(BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), TextColumn("{task.description}")),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("", total=1.0)
        self._start: float | None = None  # progress at the first step since the run resumed
        self._tokens = 0
        self._last_line = 0.0
        self._held_out = float("nan")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    @property
    def seconds(self) -> float:
        """Seconds of work, earlier parts of the run included."""
        return self._before + time.monotonic() - self._began

    def step(self, progress: float, step: int, tokens: int, loss: float) -> None:
        """Report that `step` steps of `tokens` tokens each are done, `progress` (0 to 1) of the run."""
        self._log({"step": step, "seconds": round(self.seconds, 2), "loss": round(loss, 4)})
        self._start = progress if self._start is None else self._start
        self._tokens += tokens
        took = time.monotonic() - self._began
        share = progress - self._start
        left = timedelta(seconds=round(took * (1 - progress) / share)) if share > 0 else "?"
        losses = f"loss {loss:.3f}, held out {self._held_out:.3f}"
        text = f"step {step}, {losses}, {self._tokens / took:,.0f} tokens/s, {left} left"
        self._bar.update(self._task, completed=progress, description=text)
        if self._bar.disable and time.monotonic() - self._last_line > LINES_APART:
            self._last_line = time.monotonic()
            self._console.print(f"{progress:6.1%} {text}", soft_wrap=True)

    def held_out(self, step: int, loss: float) -> None:
        self._held_out = loss
        self._log({"step": step, "seconds": round(self.seconds, 2), "held_out_loss": round(loss, 4)})

    def _log(self, row: dict[str, float]) -> None:
        with self._file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(row) + "\n")
