"""Sample texts for the page: plain decoding and the other methods, by prompt. Knows findings."""

from collections.abc import Iterator
from dataclasses import dataclass

from lade.applications.bench.methods import PLAIN
from lade.applications.bench.report.findings import Findings
from lade.applications.bench.samples import Sample

COLOURS = ("even", "odd")  # of the steps that accept drafts, in turn


@dataclass(frozen=True)
class Piece:
    """The text of a step; without a colour where the step emits one token."""

    text: str
    tokens: int
    colour: str


@dataclass(frozen=True)
class Pane:
    method: str
    tokens: int
    pieces: list[Piece]  # one for each forward


@dataclass(frozen=True)
class SampleTexts:
    """The texts of one prompt: plain decoding's, then those of the other methods, the fastest first."""

    title: str
    prompt: str
    panes: list[Pane]


def sample_texts(findings: Findings) -> list[SampleTexts]:
    groups: dict[tuple[str, str | int], list[Sample]] = {}
    for sample in findings.samples:
        groups.setdefault((sample.task, sample.prompt_id), []).append(sample)
    speeds = next(iter(findings.overall.values()))
    ratios = {method: speed.speed_ratio.median for method, speed in speeds.items() if speed.speed_ratio is not None}
    return [
        SampleTexts(
            f"{task} · {prompt_id} · temperature {own[0].temperature:g}",
            own[0].prompt,
            [
                Pane(sample.method, sum(tokens for _, tokens in sample.steps), list(coloured(sample)))
                for sample in sorted(own, key=lambda one: (one.method != PLAIN, -ratios.get(one.method, 0.0)))
            ],
        )
        for (task, prompt_id), own in groups.items()
    ]


def coloured(sample: Sample) -> Iterator[Piece]:
    accepting = 0
    for text, tokens in sample.steps:
        yield Piece(text, tokens, COLOURS[accepting % 2] if tokens > 1 else "")
        accepting += tokens > 1
