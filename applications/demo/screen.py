"""The two texts of a demo side by side in the terminal, with tokens per step and speed. Knows no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from lade.applications.chat.streamer import COLORS
from lade.applications.demo.race import Run, Step
from lade.applications.serve.text import Detokenizer

TITLES = {"plain": "plain: one token per forward", "lade": "lade: several tokens per forward"}
FIRST = "1 of 2: plain decoding has the machine for itself."
SECOND = "2 of 2: lade has the machine for itself; plain decoding is shown as fast as it was."
MARGIN, MOST = 7, 24  # lines around the panels, and of a panel
FRAME = 4  # columns and lines of a panel's border and padding
CORNERS = 6  # columns of a panel that its title and its figures leave free


@dataclass
class Side:
    """What is shown of one side.

    Attributes:
        pieces: text, and the colour of the step that gave it behind its first token.
    """

    detokenizer: Detokenizer
    run: Run = field(default_factory=Run)
    pieces: list[tuple[str, str | None]] = field(default_factory=list)

    def add(self, step: Step) -> None:
        self.run.steps.append(step)
        for at, token in enumerate(step.tokens):
            color = COLORS[len(self.run.steps) % len(COLORS)] if at else None
            self.pieces.append((self.detokenizer.add(token), color))

    def text(self) -> Text:
        return Text.assemble(*((piece, color or "") for piece, color in self.pieces))

    def figures(self, width: int) -> str:
        """As many as fit, whole ones."""
        run = self.run
        found = [f"{len(run.tokens)} tokens", f"{run.tokens_per_step:.2f}/step", f"{run.speed:.1f}/s"]
        return fitting([", ".join(found), ", ".join(found[1:]), found[1]], width)


def fitting(texts: Sequence[str], width: int) -> str:
    """The first text that fits, else the last one."""
    return next((text for text in texts if len(text) <= width), texts[-1])


class Screen:
    """Both sides.

    Args:
        heading: a line above them.
        prompt: token ids before the texts.
    """

    def __init__(self, tokenizer: Any, prompt: Sequence[int], heading: str, names: Sequence[str]) -> None:
        self.heading, self.rule = heading, FIRST
        self._tokenizer, self._prompt = tokenizer, prompt
        self.sides = {name: self._side() for name in names}

    def _side(self) -> Side:
        return Side(Detokenizer(self._tokenizer, self._prompt))

    def add(self, step: Step) -> None:
        self.sides[step.side].add(step)

    def restart(self, name: str) -> Run:
        """Empty a side for the second part. Returns its steps."""
        run, self.sides[name], self.rule = self.sides[name].run, self._side(), SECOND
        return run

    def __rich_console__(self, console: Console, options: Any) -> Any:
        """The ends of the texts that fit the terminal."""
        width = max(20, console.width // len(self.sides) - 1)
        lines = max(3, min(console.height - MARGIN, MOST))
        panels = [self._panel(console, name, width, lines) for name in self.sides]
        yield Group(Text(self.heading, style="bold"), Columns(panels, padding=(0, 1)), Text(self.rule, style="dim"))

    def _panel(self, console: Console, name: str, width: int, lines: int) -> RenderableType:
        side = self.sides[name]
        wrapped = side.text().wrap(console, width - FRAME)
        shown = Text("\n").join(wrapped[-(lines - 2) :])
        room = width - CORNERS
        title, figures = fitting([TITLES[name], name], room), side.figures(room)
        return Panel(shown, title=title, subtitle=figures, width=width, height=lines)
