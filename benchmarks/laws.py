"""Random comparisons with plain decoding: `python benchmarks/laws.py --count 5000 --seed 0`.

Every case runs plain `generate` and the same call with lade, and compares everything visible to a caller. The same seed
and number give the same case on every run; a failure's line shows how to repeat it alone (`--case`). `--kinds engine`
sends many requests through one `lade.Engine`: `--kinds engine --count 1 --requests 500`; `--kinds serve` sends them to
a server. `--stories 48` also decodes
that many story prompts with every trained model of the local data; the tests take a few of them.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks"), str(ROOT / "tests")]  # lade as it stands here, the tests' families

from hostile.case import KINDS  # noqa: E402
from hostile.run import judged, numbers, prepare, side_by_side  # noqa: E402
from hostile.verdict import CaseTally, CaseVerdict  # noqa: E402
from trained import story_laws  # noqa: E402

COLUMNS = (
    "cases",
    "calls",
    "different",
    "near_ties",
    "unsteady",
    "raised_alike",
    "native",
    "fallback",
    "tokens",
    "accepted",
)


def _kinds(context: click.Context, parameter: click.Parameter, value: str) -> tuple[str, ...]:
    kinds = tuple(part.strip() for part in value.split(",") if part.strip())
    wrong = [kind for kind in kinds if kind not in KINDS]
    if wrong or not kinds:
        raise click.BadParameter(f"must be among {', '.join(KINDS)}, got {value!r}")
    return kinds


@click.command()
@click.option("--count", default=5000, show_default=True, type=click.IntRange(1), help="Number of comparisons.")
@click.option("--seed", default=0, show_default=True, help="Seed of all cases.")
@click.option("--kinds", default=",".join(KINDS), show_default=True, callback=_kinds, help="Kinds of cases.")
@click.option("--case", "index", type=click.IntRange(0), help="Run only the case of this number.")
@click.option("--stories", default=0, show_default=True, type=click.IntRange(0), help="Number of story prompts.")
@click.option("--requests", type=click.IntRange(1), help="Requests of each engine or server.  [default: 6 to 40]")
@click.option("--jobs", default=2, show_default=True, type=click.IntRange(1), help="Parallel processes.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
def main(
    count: int,
    seed: int,
    kinds: tuple[str, ...],
    index: int | None,
    stories: int,
    requests: int | None,
    jobs: int,
    as_json: bool,
) -> None:
    """Compare lade with plain decoding in random cases; exit status 1 if anything differs."""
    start = time.perf_counter()
    tally = CaseTally()
    if index is not None:
        prepare()
        _tell(tally, [judged(seed, index, requests)])
        click.echo(tally.verdicts[0].line, err=True)
    else:
        _run(tally, side_by_side(seed, numbers(seed, count, kinds), jobs, requests), count)
    broken = _broken(stories) if stories else []
    seconds = time.perf_counter() - start
    if as_json:
        click.echo(json.dumps(_report(tally, seed, seconds, broken)))
    else:
        _show(tally, seconds)
    if tally.different or tally.too_many_ties or broken:
        raise SystemExit(1)


def _run(tally: CaseTally, parts: Iterator[list[CaseVerdict]], count: int) -> None:
    """Run all cases; exit status 130 after an interrupt."""
    try:
        for verdicts in parts:
            _tell(tally, verdicts)
            if sys.stderr.isatty():
                click.echo(f"\r{len(tally.verdicts)} of {count}", nl=False, err=True)
    except KeyboardInterrupt:
        click.echo(f"interrupted after {len(tally.verdicts)} of {count} cases; --case repeats one alone", err=True)
        raise SystemExit(130) from None


def _broken(stories: int) -> list[str]:
    """Check the laws of trained models on so many story prompts, and print each on stderr; the broken ones."""
    broken = []
    for name, law in story_laws(stories):
        try:
            click.echo(f"{name}: {law()}", err=True)
        except AssertionError as difference:
            click.echo(f"DIFFERENT\n  {name}: {difference}", err=True)
            broken.append(name)
    return broken


def _tell(tally: CaseTally, verdicts: list[CaseVerdict]) -> None:
    """Count the verdicts, and print differences and ties on stderr."""
    tally.add(verdicts)
    for verdict in verdicts:
        for tie in verdict.ties:
            click.echo(f"{tie}\n  {verdict.line}", err=True)
        if verdict.unsteady:
            click.echo(f"plain decoding does not repeat itself: {verdict.unsteady}\n  {verdict.line}", err=True)
        if verdict.differences:
            click.echo("DIFFERENT\n  " + "\n  ".join([*verdict.differences, verdict.line]), err=True)


def _report(tally: CaseTally, seed: int, seconds: float, broken: list[str]) -> dict[str, Any]:
    return {
        "seed": seed,
        "seconds": round(seconds, 1),
        "kinds": tally.rows(),
        "fallback_reasons": tally.reasons(),
        "not_built": tally.skipped(),
        "failures": [{"case": verdict.line, "differences": verdict.differences} for verdict in tally.different],
        "ties": [{"case": verdict.line, "ties": verdict.ties} for verdict in tally.verdicts if verdict.ties],
        "broken_on_stories": broken,
        "passed": not tally.different and not tally.too_many_ties and not broken,
    }


def _show(tally: CaseTally, seconds: float) -> None:
    for model, reason in tally.skipped().items():
        click.echo(f"not built: {model}: {reason}")
    for reason, count in tally.reasons().items():
        click.echo(f"plainly {count:5d}: {reason}")
    click.echo(f"{'':14}" + "".join(f"{name.replace('_', ' '):>14}" for name in (*COLUMNS, "tokens_per_step")))
    for kind, row in tally.rows().items():
        click.echo(
            f"{kind:14}"
            + "".join(f"{row[name] if row[name] is not None else '':>14}" for name in (*COLUMNS, "tokens_per_step"))
        )
    everything = tally.rows()["all"]
    click.echo(
        f"{everything['models']} models, {everything['native_models']} of them decoded natively; {seconds:.0f} s"
    )
    if tally.too_many_ties:
        click.echo("FAILED: more than one near-tie per 10,000 tokens")
    click.echo("FAILED" if tally.different else "no comparison differs")


if __name__ == "__main__":
    main()
