"""The plots of a run, one row each in `PICTURES`. Needs matplotlib, imported when they are drawn."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lade.applications.bench.report import drawn_options, drawn_speed, drawn_steps
from lade.applications.bench.report.findings import Findings
from lade.applications.bench.report.style import png


@dataclass(frozen=True)
class Picture:
    """A plot, a file in the run's folder. `draw` returns a figure, or None if the run has no data for it."""

    name: str
    caption: str
    draw: Callable[[Findings], Any | None]


PICTURES = (
    Picture("speed.png", "Speed by task; whiskers: 95% intervals over prompts.", drawn_speed.by_task),
    Picture("context.png", "Speed against context, all tasks together; whiskers: 95%.", drawn_speed.against_context),
    Picture("batch.png", "Speed against batch, all tasks together; whiskers: 95%.", drawn_speed.against_batch),
    Picture("options.png", "Runtime against options that were varied, all tasks together.", drawn_options.runtime),
    Picture("candidates.png", "Acceptance rate against candidates; whiskers: 95%.", drawn_options.acceptance),
    Picture("accepted.png", "Tokens emitted by a step.", drawn_steps.accepted_lengths),
    Picture("cost.png", "What a forward costs by the tokens in it; a point is one run.", drawn_steps.cost_curve),
)


def drawn(findings: Findings) -> dict[Picture, bytes]:
    """The plots as PNG. ImportError without matplotlib."""
    figures = {picture: picture.draw(findings) for picture in PICTURES}
    return {picture: png(figure) for picture, figure in figures.items() if figure is not None}
