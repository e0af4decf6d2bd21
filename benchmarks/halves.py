"""Two halves of the prompts of four suites: constants are chosen on one, figures are of the other.

Suites share prompts, so a half is a property of a prompt's text, whatever suite it stands in. `halves.json` lists the
hashes of the half to tune on; all others are in the half to report. `python benchmarks/halves.py` writes the list, and
with `--prompts FILE` or `--ids FILE` prompts of a half for `lade bench`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from functools import cache
from hashlib import sha256
from pathlib import Path

import click

from lade.applications.bench.prompts import Prompt
from lade.applications.bench.suites import SUITES, SuiteError

FILE = Path(__file__).with_suffix(".json")
TUNE, REPORT = HALVES = "tune", "report"
UNION = ("spec_bench", "mt_bench", "human_eval", "gsm8k")
REPORTED = {"mt_bench": 16, "gsm8k": 16, "human_eval": 4}  # that many first prompts are in figures already
ASKED = ("spec_bench", "human_eval", "gsm8k")  # MT-Bench is a category of Spec-Bench
DIGITS = 12  # of a hash
RULE = (
    "SHA-256 of the first turn, without white space at its ends (a problem of GSM8K without the words around it); a "
    "prompt is in the tune half if the first byte is even, unless it is one of the first "
    + ", ".join(f"{number} of {suite}" for suite, number in REPORTED.items())
)


def digest(prompt: Prompt) -> str:
    """The hash of a prompt's first turn."""
    text = prompt.text.removeprefix("Question: ").removesuffix("\nAnswer:")
    return sha256(text.strip().encode()).hexdigest()[:DIGITS]


def half_of(prompt: Prompt) -> str:
    return TUNE if digest(prompt) in _tuned() else REPORT


def chosen(half: str, number: int) -> dict[str, list[Prompt]]:
    """By category of Spec-Bench and suite: the first `number` prompts of a half in the order of their hashes.

    Raises:
        SuiteError: a suite has no prompts here.
    """
    groups: dict[str, dict[str, Prompt]] = defaultdict(dict)
    for suite in ASKED:
        for prompt in SUITES[suite].load():
            if half_of(prompt) == half:
                groups[prompt.category or suite][digest(prompt)] = prompt
    return {name: [found[key] for key in sorted(found)[:number]] for name, found in groups.items()}


def chosen_ids(half: str, number: int) -> list[dict[str, str | int]]:
    """The same prompts as `chosen`, as lines for `lade bench --ids`."""
    wanted = {(group, digest(prompt)) for group, prompts in chosen(half, number).items() for prompt in prompts}
    return [
        {"suite": suite, "id": prompt.id}
        for suite in ASKED
        for prompt in SUITES[suite].load()
        if (prompt.category or suite, digest(prompt)) in wanted
    ]


def tuned() -> list[str]:
    """The hashes of the tune half by the rule, from the suites."""
    suites = {name: SUITES[name].load() for name in UNION}
    reported = {digest(prompt) for name, number in REPORTED.items() for prompt in suites[name][:number]}
    every = {digest(prompt) for prompts in suites.values() for prompt in prompts}
    return sorted(found for found in every - reported if int(found[:2], 16) % 2 == 0)


@cache
def _tuned() -> frozenset[str]:
    return frozenset(json.loads(FILE.read_text())[TUNE])


def write_prompts(path: Path, half: str, number: int) -> int:
    """Write first turns as `lade bench --prompts` reads them. Returns how many.

    Raises:
        SuiteError: a suite has no prompts here.
    """
    rows = [
        {"id": digest(prompt), "category": group, "prompt": prompt.text}
        for group, prompts in chosen(half, number).items()
        for prompt in prompts
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return len(rows)


@click.command()
@click.option("--prompts", type=click.Path(dir_okay=False, path_type=Path), help="Write prompts, not the list.")
@click.option("--ids", type=click.Path(dir_okay=False, path_type=Path), help="Write their suites and ids.")
@click.option("--half", default=REPORT, show_default=True, type=click.Choice(HALVES))
@click.option("--n", "number", default=8, show_default=True, type=click.IntRange(min=1), help="Prompts of a category.")
def main(prompts: Path | None, ids: Path | None, half: str, number: int) -> None:
    """Write the list of hashes, which needs the prompts of all suites; with --prompts or --ids, prompts of a half."""
    try:
        if prompts is not None:
            click.echo(f"{prompts}: {write_prompts(prompts, half, number)} prompts")
            return
        if ids is not None:
            rows = chosen_ids(half, number)
            ids.write_text("".join(json.dumps(row) + "\n" for row in rows))
            click.echo(f"{ids}: {len(rows)} prompts")
            return
        content = {"suites": UNION, "rule": RULE, "digits": DIGITS, TUNE: tuned()}
    except SuiteError as error:
        raise click.ClickException(str(error)) from error
    FILE.write_text(json.dumps(content, indent=1) + "\n")
    click.echo(f"{FILE}: {len(content[TUNE])} prompts to tune on")


if __name__ == "__main__":
    main()
