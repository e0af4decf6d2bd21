"""What is known of the kernel without a device: its error over random trees, and its builds for sm_90a.

    python benchmarks/kernel.py errors --count 2000 --output errors.jsonl
    python benchmarks/kernel.py builds --output builds.jsonl

`errors` runs Triton's interpreter and compares with PyTorch's attention with dense masks, both against float64.
`builds` compiles every program of attention and products that the tables of sizes can choose, and reads registers,
stack and shared memory. Both add lines to their file and go on behind the last one, so they may be interrupted. Exit
status 1 if a bound is not held.
"""

from __future__ import annotations

import functools
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import click

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks"), str(ROOT / "tests")]

ALLOWED = {"float32": 1.0, "float16": 1.2, "bfloat16": 1.2}  # largest error, in that of PyTorch's attention


@click.group()
def main() -> None:
    """Check the kernel without a device."""


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _add(path: Path, line: dict[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


@main.command()
@click.option("--count", default=2000, show_default=True, type=click.IntRange(1), help="Trees per type.")
@click.option("--output", required=True, type=click.Path(dir_okay=False, path_type=Path), help="File of results.")
def errors(count: int, output: Path) -> None:
    """Compare errors with those of PyTorch's attention."""
    os.environ["TRITON_INTERPRET"] = "1"
    known = {(line["dtype"], line["seed"]) for line in _lines(output)}
    for seed in range(count):
        for dtype in ALLOWED:
            if (dtype, seed) not in known:
                _add(output, _errors(dtype, seed))
    lines = [line for line in _lines(output) if line["seed"] < count]
    held = [_summary(dtype, [line for line in lines if line["dtype"] == dtype]) for dtype in ALLOWED]
    raise SystemExit(0 if all(held) else 1)


def _errors(dtype: str, seed: int) -> dict[str, Any]:
    import interpreted
    import torch
    from treerows import random_case

    from lade.kernels.launch import attend

    interpreted.hasten()
    case = random_case(Random(seed), getattr(torch, dtype), plain=True, most=1, keys=160, nodes=32)
    found = attend(case.query, case.key, case.value, case.rows, case.rules, parts=1 + seed % 3)
    kernel, sdpa = case.errors(found, case.masked())
    return {"dtype": dtype, "seed": seed, "kernel": kernel, "sdpa": sdpa}


def _summary(dtype: str, lines: list[dict[str, Any]]) -> bool:
    kernel, sdpa = (max(line[name] for line in lines) for name in ("kernel", "sdpa"))
    held = kernel <= ALLOWED[dtype] * sdpa
    click.echo(
        f"{dtype:9} {len(lines)} trees: largest error {kernel:.3g}, of SDPA {sdpa:.3g}: {kernel / sdpa:.2f} of it "
        f"(allowed {ALLOWED[dtype]}): {'held' if held else 'BROKEN'}"
    )
    return held


@main.command()
@click.option("--output", required=True, type=click.Path(dir_okay=False, path_type=Path), help="File of results.")
@click.option("--only", default="", help="Only builds whose names contain this.")
def builds(output: Path, only: str) -> None:
    """Compile all programs for sm_90a."""
    os.environ.pop("TRITON_INTERPRET", None)
    lines = _lines(output)
    known = {line["name"]: line for line in lines}
    for name, build in _each():
        if only in name and name not in known:
            known[name] = {"name": name, **build()}
            _add(output, known[name])
    broken = [line for line in known.values() if not line["holds"]]
    for line in known.values():
        usage = f"{line['registers']:4} registers {line['stack']:5} B stack {line['shared'] // 1024:4} KiB"
        click.echo(f"{line['name']:60} {usage}")
    click.echo(f"{len(known)} builds, {len(broken)} with a stack or too much shared memory")
    raise SystemExit(1 if broken else 0)


def _each() -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    import kernel_builds
    import product_builds

    for build in kernel_builds.every():
        dtype, size, block, rules, partial = build
        name = f"{kernel_builds.TYPES[dtype]} {size} {block} {rules} {'parts' if partial else 'whole'}"
        yield _plain(name), functools.partial(kernel_builds.told, *build)
    for product in product_builds.every():
        dtype, tokens, sizes, pair, even = product
        name = f"{kernel_builds.TYPES[dtype]} products of {tokens} {sizes}{' pairs' * pair}{' even' * even}"
        yield _plain(name), functools.partial(product_builds.built, *product)


def _plain(name: str) -> str:
    return re.sub(r"[A-Z][a-z]+\(|[),]", "", name)


if __name__ == "__main__":
    main()
