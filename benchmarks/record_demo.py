"""Records `lade demo` as an animated SVG: `python benchmarks/record_demo.py smollm2-135m --out docs/demo`.

One run gives OUT.json (every forward with its tokens and seconds) and OUT.svg, which plays it at its own speed. Without
MODEL the picture is drawn again from OUT.json. The seconds are CPU time of the process on one thread: wall time, if
nothing else runs. The animation is CSS alone, as README pages run no scripts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, TypeAlias

import click

from lade.applications.exits import usage
from lade.applications.options import MODEL
from lade.applications.outputs import make_room

COLUMNS = 47  # of a panel
SIZE, CHARACTER, LEADING = 13, 8.0, 18  # pixels
PADDING, GAP, TOP, BOTTOM = 16, 16, 62, 64
PANEL = COLUMNS * CHARACTER + 2 * PADDING
WIDTH = 2 * PANEL + 3 * GAP
HOLD = 4.0  # seconds at the end of a round
TICK = 0.25  # seconds between figures
TITLES = {"plain": "plain decoding: one token per forward pass", "lade": "lade: several tokens per forward pass"}
COLORS = ("#7ee787", "#79c0ff")
STYLE = """
text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,"Liberation Mono",monospace;fill:#e6edf3;white-space:pre}
.dim{fill:#9198a1}.title{font-weight:bold}.a{fill:#7ee787}.b{fill:#79c0ff}.figure{fill-opacity:0}.last{fill-opacity:1}
.t{animation-duration:%(period)ss;animation-iteration-count:infinite;animation-timing-function:step-end}
@media(prefers-reduced-motion:reduce){.t{animation:none}}
"""

Cell: TypeAlias = tuple[str, int, str]  # a character, its step, and its class
Steps: TypeAlias = Sequence[tuple[float, Sequence[str]]]  # seconds, and the text of each token


@dataclass
class Rules:
    """The style sheet's keyframes; one name for each pair of times."""

    period: float
    names: dict[tuple[float, float | None], str]

    def shown(self, begin: float, end: float | None = None) -> str:
        """The class of what is shown from `begin` on, in seconds, up to `end` or the end of the round."""
        key = round(begin, 3), end if end is None else round(end, 3)
        return self.names.setdefault(key, f"k{len(self.names)}")

    def __str__(self) -> str:
        return "\n".join(
            f"@keyframes {name}{{0%{{fill-opacity:0}}{self._at(begin)}{{fill-opacity:1}}"
            f"{'' if end is None else self._at(end) + '{fill-opacity:0}'}}}.{name}{{animation-name:{name}}}"
            for (begin, end), name in self.names.items()
        )

    def _at(self, seconds: float) -> str:
        return f"{max(0.01, 100 * seconds / self.period):.2f}%"


def draw(data: dict[str, Any]) -> str:
    """The animated picture of a run."""
    period = max(steps[-1][0] for steps in data["sides"].values()) + HOLD
    rules = Rules(period, {})
    lines = max(len(wrapped(cells(steps))) for steps in data["sides"].values())
    height = (lines + 2) * LEADING
    body = "\n".join(
        panel(name, data["sides"][name], GAP + number * (PANEL + GAP), height, rules)
        for number, name in enumerate(TITLES)
    )
    foot = TOP + height + LEADING + 26
    last = f'<text class="t title {rules.shown(period - HOLD)}" x="{GAP}" y="{foot}">{escape(gain(data))}</text>'
    size = f"{WIDTH:g} {TOP + height + LEADING + BOTTOM:g}"
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" role="img">
<title>{escape(gain(data))}</title>
<style>{STYLE % {"period": f"{period:.2f}"}}{rules}</style>
<rect width="100%" height="100%" rx="8" fill="#0d1117"/>
<text x="{GAP}" y="28" class="title">$ lade demo {escape(data["model"])}</text>
<text x="{GAP}" y="48" class="dim">&gt; {escape(data["prompt"])}</text>
{body}
{last}
<text x="{GAP}" y="{foot + 22}" class="dim">{escape(machine(data))}</text>
</svg>
"""


def panel(name: str, steps: Steps, x: float, height: int, rules: Rules) -> str:
    """One side: its frame, its text step by step, and its figures."""
    seconds = [each[0] for each in steps]
    parts = [
        f'<rect x="{x:g}" y="{TOP}" width="{PANEL:g}" height="{height}" rx="6" fill="none" stroke="#3d444d"/>',
        f'<text class="title" x="{x + PADDING:g}" y="{TOP + LEADING}">{escape(TITLES[name])}</text>',
    ]
    for number, line in enumerate(wrapped(cells(steps))):
        y = TOP + (number + 2) * LEADING + 6
        spans = "".join(
            f'<tspan class="t {rules.shown(seconds[step])} {kind}">{escape("".join(cell[0] for cell in group))}</tspan>'
            for (step, kind), group in groupby(line, key=lambda cell: cell[1:])
        )
        parts.append(f'<text x="{x + PADDING:g}" y="{y}" xml:space="preserve">{spans}</text>')
    y = TOP + height + LEADING
    for begin, end, text in figures(steps):
        kind = "figure last" if end is None else "figure"
        parts.append(f'<text class="t {kind} {rules.shown(begin, end)}" x="{x:g}" y="{y}">{escape(text)}</text>')
    return "\n".join(parts)


def cells(steps: Steps) -> list[Cell]:
    """The characters of a text; a step's first token has no colour, as plain decoding gets it too."""
    found = []
    for number, (_, pieces) in enumerate(steps):
        for at, piece in enumerate(pieces):
            found += [(character, number, "ab"[number % 2] if at else "") for character in piece]
    return found


def wrapped(text: Sequence[Cell]) -> list[list[Cell]]:
    """Lines of at most COLUMNS characters, broken at spaces where there are any."""
    lines: list[list[Cell]] = []
    line: list[Cell] = []
    for cell in [*text, ("\n", 0, "")]:
        if cell[0] != "\n":
            line.append(cell)
        if cell[0] == "\n" or len(line) > COLUMNS:
            while len(line) > COLUMNS:
                spaces = [at for at, (character, *_) in enumerate(line[: COLUMNS + 1]) if character == " "]
                cut = spaces[-1] if spaces and spaces[-1] > 0 else COLUMNS
                lines.append(line[:cut])
                line = line[cut:].copy() if line[cut][0] != " " else line[cut + 1 :]
            if cell[0] == "\n":
                lines.append(line)
                line = []
    return lines


def figures(steps: Steps) -> Iterator[tuple[float, float | None, str]]:
    """What the figures say from one time to the next; the last ones stay."""
    until, at, tokens = steps[-1][0], 0, 0
    times = [tick * TICK for tick in range(1, int(until / TICK) + 1) if tick * TICK < until]
    moments: list[float | None] = [*times, until, None]
    for begin, end in pairwise(moments):
        while at < len(steps) and steps[at][0] <= begin:
            tokens, at = tokens + len(steps[at][1]), at + 1
        if at:
            rate = f"{tokens / max(at - 1, 1):.2f} per step  {tokens / begin:.1f} tokens/s"
            yield begin, end, f"{begin:4.1f} s  {tokens:3} tokens  {rate}"


def gain(data: dict[str, Any]) -> str:
    """The last line of the demo."""
    return str(data["verdict"])


def machine(data: dict[str, Any]) -> str:
    return f"{data['model']}, {data['dtype']}, greedy, one core of {data['cpu']}, torch {data['torch']}, {data['date']}"


def measured(
    name: str, prompt: str | None, most: int, clock: Callable[[], float] = time.process_time
) -> dict[str, Any]:
    """Run both sides of the demo on one thread, each alone."""
    import torch

    from lade.applications.bench.machine import describe
    from lade.applications.demo.command import QUESTION, WARM_UP, encoded, sides
    from lade.applications.demo.race import LADE, PLAIN, Run, timed, verdict
    from lade.applications.serve.text import Detokenizer
    from lade.models import load
    from lade.models.shipped import NAMES, prompt_for

    torch.set_num_threads(1)
    model, tokenizer = load(name, warm=True)
    prompt = prompt or (prompt_for(name) if name in NAMES else QUESTION)
    ids = encoded(model, tokenizer, prompt)
    for side in sides(model, ids, WARM_UP, "warm-up").values():
        list(timed("", side, clock))
    both = sides(model, ids, most, "demo")
    runs = {side: Run(list(timed(side, both[side], clock))) for side in (PLAIN, LADE)}
    about = describe(model.device)
    data: dict[str, Any] = {
        "model": name,
        "dtype": str(model.dtype).removeprefix("torch."),
        "prompt": prompt,
        "cpu": about["cpu"],
        "date": str(about["date"])[:10],
        "torch": torch.__version__,
        "verdict": verdict(runs[PLAIN], runs[LADE]),
        "sides": {},
    }
    for side, run in runs.items():
        text = Detokenizer(tokenizer, ids[0].tolist())
        ends = tokenizer.all_special_ids
        steps = [
            [round(step.seconds, 4), ["" if each in ends else text.add(each) for each in step.tokens]]
            for step in run.steps
        ]
        data["sides"][side] = steps
    return data


@click.command()
@click.argument("model", required=False, callback=MODEL)
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Of the files, without .json and .svg.")
@click.option("--prompt", help="What both answer.  [default: the demo's]")
@click.option("--max-new-tokens", default=128, show_default=True, type=click.IntRange(min=2))
def main(model: str | None, out: Path, prompt: str | None, max_new_tokens: int) -> None:
    """Record a run of MODEL, or draw the recorded one again."""
    file = out.with_suffix(".json")
    with usage():
        make_room("--out", file)
        if model is None and not file.exists():
            raise ValueError(f"--out must be that of a recorded run where no MODEL is given, got {out}")
    if model is not None:
        data = measured(model, prompt, max_new_tokens)
        file.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    data = json.loads(file.read_text(encoding="utf-8"))
    out.with_suffix(".svg").write_text(draw(data), encoding="utf-8")
    click.echo(gain(data))


if __name__ == "__main__":
    main()
