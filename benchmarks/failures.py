"""Ranks that die or stop at random: `python benchmarks/failures.py --count 50`. No supervisor: processes of this one.

Every time one rank gets SIGKILL or SIGSTOP while texts are decoded; all others must end with `lade.RankError` within
the timeout and 5 s. `--prefill` instead lets one rank's prefill take longer than the timeout, which is no error.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import click
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import ranks  # noqa: E402
from tiny import own_llama, words  # noqa: E402

import lade  # noqa: E402
from lade.distributed.target import SharedTarget  # noqa: E402

KINDS = ("lookahead parallel", "tensor parallel")
READY = 600.0  # seconds until all ranks decode
SIGNALS = (signal.SIGKILL, signal.SIGSTOP)


def decode(folder: Path, rank: int, size: int, kind: str, mode: str, timeout: float, slow: float) -> Any:
    """Decode until an error, and say when it came; `slow` seconds of a prefill on the last rank."""
    begin(folder, rank, size)
    settings = lade.LookaheadConfig(mode=mode, timeout=timeout, workers=1 if kind == KINDS[1] else size, adapt=False)
    model = sharded(folder) if kind == KINDS[1] else own_llama()
    if slow and rank == size - 1:
        prefill = SharedTarget.prefill
        SharedTarget.prefill = lambda *given, **named: (time.sleep(slow), prefill(*given, **named))[1]
    calls = 0
    try:
        while not (slow and calls):
            lade.generate(model, **words(9), do_sample=False, max_new_tokens=200, config=settings)
            calls += 1
            (folder / f"ready{rank}").touch()
    except lade.RankError as error:
        return {"calls": calls, "error": str(error), "at": time.monotonic()}
    return {"calls": calls, "error": None, "at": time.monotonic()}


def begin(folder: Path, rank: int, size: int) -> None:
    torch.set_num_threads(1)
    own = {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "RANK": rank, "LOCAL_RANK": rank}
    os.environ.update({name: str(value) for name, value in own.items()})
    torch.distributed.init_process_group("gloo", store=store_of(folder, rank, size), rank=rank, world_size=size)


def store_of(folder: Path, rank: int, size: int) -> torch.distributed.Store:
    """The store that rank 0 holds, at a port which the system chooses as it opens: no other program can take it."""
    told = folder / "port"
    if rank == 0:
        store = torch.distributed.TCPStore("127.0.0.1", 0, size, is_master=True, wait_for_workers=False)
        (folder / "port.part").write_text(str(store.port))
        (folder / "port.part").rename(told)
        return store
    while not told.exists():
        time.sleep(0.01)
    return torch.distributed.TCPStore("127.0.0.1", int(told.read_text()), size)


def sharded(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    with warnings.catch_warnings(action="ignore", category=FutureWarning):  # transformers' own
        return AutoModelForCausalLM.from_pretrained(folder / "model", tp_plan="auto", dtype=torch.float32).eval()


def one(number: int, size: int, kind: str, mode: str, timeout: float, slow: float) -> dict[str, Any]:
    """One run: the rank, the signal, and what the others said after how many seconds."""
    choice = random.Random(number)
    folder = Path(tempfile.mkdtemp(prefix="failures-"))
    if kind == KINDS[1]:
        own_llama().save_pretrained(folder / "model")
    work = lambda rank: decode(folder, rank, size, kind, mode, timeout, slow)  # noqa: E731
    children = ranks.start(folder, size, work, joined=False)
    victim, name = choice.randrange(size), choice.choice(SIGNALS)
    struck = time.monotonic()
    if not slow:
        while not all((folder / f"ready{rank}").exists() for rank in range(size)):
            if any((folder / f"{rank}.json").exists() for rank in range(size)) or time.monotonic() - struck > READY:
                break  # `judged` tells
            time.sleep(0.01)
        time.sleep(choice.uniform(0, 1))
        struck = time.monotonic()
        os.kill(children[victim], name)
    others = [rank for rank in range(size) if slow or rank != victim]
    found = await_results(folder, others, struck + (slow + 60 if slow else timeout + 15))
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    told = {rank: found.get(rank) for rank in others}
    return {"number": number, "kind": kind, "victim": victim, "signal": name.name, "told": told, "struck": struck}


def await_results(folder: Path, expected: list[int], end: float) -> dict[int, Any]:
    files = {rank: folder / f"{rank}.json" for rank in expected}
    while time.monotonic() < end and not all(file.exists() for file in files.values()):
        time.sleep(0.02)
    return {rank: json.loads(file.read_text()) for rank, file in files.items() if file.exists()}


def judged(run: dict[str, Any], timeout: float, slow: float) -> str | None:
    """What is wrong with a run."""
    for rank, told in run["told"].items():
        if told is None:
            return f"rank {rank} hangs"
        if "error" in told:
            return f"rank {rank} ended with {told['error']}"
        value = told["value"]
        if slow:
            return None if value["error"] is None else f"rank {rank} ended with {value['error']}"
        if value["error"] is None or value["at"] - run["struck"] > timeout + 5:
            return f"rank {rank} ended after {value['at'] - run['struck']:.1f} s: {value['error']}"
        if f"rank {run['victim']}" not in value["error"]:
            return f"rank {rank} does not name rank {run['victim']}: {value['error']}"
    return None


@click.command()
@click.option("--count", default=50, show_default=True, type=click.IntRange(1))
@click.option("--ranks", "size", default=3, show_default=True, type=click.IntRange(2))
@click.option("--timeout", default=5.0, show_default=True)
@click.option("--kind", type=click.Choice(KINDS), default=KINDS[0], show_default=True)
@click.option("--mode", type=click.Choice(["auto", "lookahead"]), default="auto", show_default=True)
@click.option("--prefill", "slow", default=0.0, help="Seconds of a slow prefill on one rank, instead of signals.")
@click.option("--first", default=0, show_default=True, help="Number of the first run.")
def main(count: int, size: int, timeout: float, kind: str, mode: str, slow: float, first: int) -> None:
    """Exit status 1 if a rank hangs, ends late or blames another."""
    wrong, latest = 0, 0.0
    for number in range(first, first + count):
        run = one(number, size, kind, mode, timeout, slow)
        fault = judged(run, timeout, slow)
        seconds = [told["value"]["at"] - run["struck"] for told in run["told"].values() if told and "value" in told]
        latest = max([latest, *seconds])
        said = {rank: told and told.get("value", told).get("error") for rank, told in run["told"].items()}
        click.echo(f"{number} {run['signal']} rank {run['victim']}: {fault or 'right'} {seconds} {said}")
        wrong += fault is not None
    click.echo(f"{count - wrong} of {count} right; the latest end after {latest:.1f} s")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
