"""The pictures of the documents, and their tables of speeds.

`python benchmarks/figures.py` writes docs/speed.svg from the run in docs/reference, and docs/step.svg; it prints the
rows of the tables in README.md and docs/figures.md. The pictures follow the reader's light or dark setting.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import median
from typing import Any

import click

from lade.core.tree import ancestor_matrix

DOCS = Path(__file__).resolve().parents[1] / "docs"
NAMES = {
    "auto:warm=1": "lade, warm table",
    "auto": "lade",
    "prompt_lookup": "prompt lookup",
    "lookahead": "the paper's algorithm",
}
TASKS = {
    "mt_bench": "MT-Bench",
    "translation": "translation",
    "summarization": "summaries",
    "qa": "questions",
    "math_reasoning": "math",
    "rag": "RAG",
    "human_eval": "HumanEval",
    "gsm8k": "GSM8K",
}
IN_README = ("mt_bench", "human_eval", "gsm8k")
STYLE = """text { font: 13px system-ui, sans-serif; fill: #1f2328 }
.small { font-size: 11px } .head { font-weight: 600 } .middle { text-anchor: middle } .end { text-anchor: end }
.line { stroke: #8c959f; fill: none } .grid { stroke: #d1d9e0 } .off { fill: none; stroke: #8c959f }
.a { fill: #0550ae } .b { fill: #54aeff } .c { fill: #e16f24 } .d { fill: #8c959f }
.on { fill: #0550ae; stroke: #0550ae } .path { stroke: #0550ae; stroke-width: 3; fill: none } .light { fill: #fff }
@media (prefers-color-scheme: dark) { text { fill: #f0f6fc } .grid { stroke: #3d444d } .a, .on { fill: #1f6feb }
.on, .path { stroke: #1f6feb } .b { fill: #a5d6ff } .light { fill: #fff } }"""
Ratios = dict[str, dict[str, float]]  # method -> task -> speed over plain decoding


def ratios(records: Iterable[Mapping[str, Any]]) -> Ratios:
    """Medians over prompts of tokens/s over those of plain decoding; "all" is over the prompts of all tasks.

    A prompt's ratio is the median over its turns and repeats.
    """
    rows = [row for row in records if row["temperature"] == 0 and row["batch"] == 1 and row["context"] is None]
    speed = {(row["method"], *_run(row)): row["new_tokens"] / row["seconds"] for row in rows}
    pairs: dict[tuple[str, str, str], list[float]] = {}
    for (method, task, prompt, *run), value in speed.items():
        pairs.setdefault((method, task, prompt), []).append(value / speed["plain", task, prompt, *run])
    found: dict[str, dict[str, list[float]]] = {name: {} for name in NAMES}
    for (method, task, _), values in pairs.items():
        for group in (task, "all") if method in found else ():
            found[method].setdefault(group, []).append(median(values))
    return {method: {task: median(values) for task, values in tasks.items()} for method, tasks in found.items()}


def _run(row: Mapping[str, Any]) -> tuple[str, str, int, int]:
    """Task, prompt, turn and repeat of a record; a task is a suite, or a category of prompts from a file."""
    task = row["task"] if row["task"] in TASKS else row["category"]
    return task, row["prompt_id"], row["turn"], row["repeat"]


def table(found: Ratios, overall: Sequence[Mapping[str, Any]], tasks: Iterable[str]) -> list[str]:
    """Rows with the ratios of some tasks and of all prompts, with the intervals of the run's summary."""
    intervals = {row["method"]: row["speed_ratio"] for row in overall}
    rows = []
    for method, name in NAMES.items():
        low, high = (f"{intervals[method][end]:.2f}" for end in ("low", "high"))
        cells = [f"{found[method][task]:.2f}×" for task in tasks]
        rows.append(f"| {name} | {' | '.join(cells)} | **{found[method]['all']:.2f}×** ({low}–{high}) |")
    return rows


def text(x: float, y: float, words: str, *classes: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{" ".join(classes)}">{escape(words)}</text>'


def svg(width: float, height: float, title: str, parts: Iterable[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img">'
    return "\n".join([head, f"<title>{escape(title)}</title>", f"<style>{STYLE}</style>", *parts, "</svg>", ""])


def speed_picture(found: Ratios) -> str:
    """Bars of each task's ratios, from 0; the line at 1 is plain decoding."""
    groups = {"all": "all prompts"} | TASKS
    left, bar, pitch, step, top = 96, 9, 12, 57, 42
    scale = (760 - left - 44) / max(max(tasks.values()) for tasks in found.values())
    height = top + step * len(groups) + 12
    parts = [
        f'<line class="grid" x1="{left + one * scale:g}" x2="{left + one * scale:g}" y1="{top - 6}" y2="{height - 8}"/>'
        for one in (1, 2, 3)
    ]
    parts += [text(left + one * scale, top - 10, f"{one}×", "small", "middle") for one in (1, 2, 3)]
    for number, (method, name) in enumerate(NAMES.items()):
        parts.append(f'<rect class="{"abcd"[number]}" x="{left + 150 * number}" y="6" width="10" height="10"/>')
        parts.append(text(left + 150 * number + 15, 15, name, "small"))
        for group, key in enumerate(groups):
            y, length = top + step * group + pitch * number, found[method][key] * scale
            parts.append(f'<rect class="{"abcd"[number]}" x="{left}" y="{y}" width="{length:.1f}" height="{bar}"/>')
            parts.append(text(left + round(length, 1) + 4, y + 8.5, f"{found[method][key]:.2f}×", "small"))
    parts += [text(left - 8, top + step * row + 27, name, "end") for row, name in enumerate(groups.values())]
    return svg(760, height, "Speed over plain decoding, by task", parts)


WORDS = ("on", "the", "a", "mat", "sofa", "chair", ".")  # nodes of the drawn tree; the first is the root
PARENTS = (-1, 0, 0, 1, 1, 2, 3)
PLACES = ((40, 150), (110, 105), (110, 205), (180, 70), (180, 140), (180, 205), (240, 70))
ACCEPTED = (0, 1, 3, 6)
CHOICES = (("on", "the"), ("the", "mat"), ("mat", "."), (".", "It"))  # a visited node, the model's choice after it


def step_picture() -> str:
    """A step: the draft tree, the attention mask of its one forward, and the walk that accepts a path."""
    parts = [
        text(10, 20, "1. Draft a tree", "head"),
        text(280, 20, "2. One forward, tree mask", "head"),
        text(540, 20, "3. Walk: the model chooses", "head"),
        text(10, 40, "text so far: The cat sat on", "small"),
        text(280, 40, "a row sees the filled columns", "small"),
        text(540, 40, "a drafted choice goes on", "small"),
    ]
    return svg(760, 300, "A step: draft tree, attention mask, walk", [*parts, *_tree(), *_mask(), *_walk()])


def _tree() -> list[str]:
    lines = [
        f'<line class="{"path" if node in ACCEPTED else "line"}" x1="{PLACES[parent][0]}" y1="{PLACES[parent][1]}" '
        f'x2="{PLACES[node][0]}" y2="{PLACES[node][1]}"/>'
        for node, parent in enumerate(PARENTS)
        if parent >= 0
    ]
    boxes = [
        f'<rect class="{"on" if node in ACCEPTED else "d"}" x="{x - 23}" y="{y - 13}" width="46" height="26" rx="6"/>'
        + text(x, y + 4, WORDS[node], "middle", "light")
        for node, (x, y) in enumerate(PLACES)
    ]
    return lines + boxes


def _mask() -> list[str]:
    """The mask that the engine builds for this tree."""
    parts = []
    for row, seen in enumerate(ancestor_matrix(list(PARENTS)).tolist()):
        parts.append(text(340, 98 + 26 * row, WORDS[row], "end", "small"))
        parts.append(text(358 + 26 * row, 74, WORDS[row], "middle", "small"))
        parts += [
            f'<rect class="{"on" if cell else "off"}" x="{347 + 26 * column}" y="{82 + 26 * row}" width="22" '
            f'height="22"/>'
            for column, cell in enumerate(seen)
        ]
    return parts


def _walk() -> list[str]:
    parts = []
    for number, (node, choice) in enumerate(CHOICES):
        y = 82 + 40 * number
        told = "in the tree" if number < len(CHOICES) - 1 else "not in the tree: stop"
        parts.append(text(548, y + 12, f"after “{node}”: {choice}", "head"))
        parts.append(text(548, y + 28, told, "small"))
    return [*parts, text(540, 256, "4 tokens from one forward:", "head"), text(540, 276, "the mat . It")]


def read_run(folder: Path) -> tuple[Ratios, list[dict[str, Any]]]:
    """The ratios of a run of `lade bench`, and the overall rows of its summary."""
    lines = (folder / "results.jsonl").read_text(encoding="utf-8").splitlines()
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return ratios(map(json.loads, lines)), summary["overall"]


def pictures(found: Ratios) -> dict[str, str]:
    """File name -> SVG."""
    return {"speed.svg": speed_picture(found), "step.svg": step_picture()}


@click.command()
def main() -> None:
    """Write the pictures into docs, and print the rows of the tables."""
    found, overall = read_run(DOCS / "reference")
    for name, picture in pictures(found).items():
        (DOCS / name).write_text(picture, encoding="utf-8")
    for tasks in (IN_README, TASKS):
        click.echo("\n".join(table(found, overall, tasks)))


if __name__ == "__main__":
    main()
