"""Tokens per step beside dejavuu (PyPI), at equal tokens in a forward: greedy, float32, so that texts are the same.

Its drafters run in an environment of their own, which the first run makes in the folder VENV: dejavuu and what it needs
beyond this environment's packages, whose torch and transformers it uses. It asks for Python 3.13; its drafters run on
3.11. Prompts are of the half that tuned nothing (`halves.py`). OUT gets one JSON line per prompt and setting behind a
line about machine and versions; the same command goes on behind the settings that are complete.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any

import click
import torch
from halves import REPORT, digest, half_of
from integerlists import integers_from
from namelists import names_among

import lade
from lade.applications.bench.conversation import Conversation, Style
from lade.applications.bench.machine import available_cores, describe
from lade.applications.bench.suites import SUITES, SuiteError
from lade.applications.interval import Estimate, Rate, pooled_rate_ratio
from lade.applications.options import MODEL
from lade.config.settings import FAMILIES
from lade.models import load
from lade.models.load import model_source

VERSION = "0.2.0"
PINNED = ("loguru==0.7.3", "onnxruntime==1.32.0")  # what it imports beyond lade's own packages
WORKER = Path(__file__).with_name("dejavuu_worker.py")
WIDTH = 4  # branches of its prompt lookup
COLD = tuple(name for name in FAMILIES if name != "warm")
NEW, KEPT = "new", "kept"  # what was learned from a prompt is forgotten, or kept for the next ones
OURS = {  # name: sources
    f"lade cold, {NEW}": COLD,
    f"lade warm, {NEW}": FAMILIES,
    f"lade cold, {KEPT}": COLD,
    f"lade warm, {KEPT}": FAMILIES,
}
ALL = "all"
Setting = tuple[str, int]  # a system, and the most tokens of its forwards


@dataclass(frozen=True)
class Row:
    """One prompt under one setting."""

    system: str
    budget: int
    suite: str
    prompt: str
    new_tokens: int
    steps: int
    forward_tokens: int
    text: str  # a hash

    @property
    def setting(self) -> Setting:
        return self.system, self.budget

    @property
    def rate(self) -> Rate:
        return self.new_tokens, self.steps


@dataclass(frozen=True)
class Asked:
    """A prompt."""

    suite: str
    key: str
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Job:
    """What both systems decode."""

    model: str
    prompts: Sequence[Asked]
    tokens: int
    threads: int
    eos: int

    def row(self, setting: Setting, index: int, text: Sequence[int], steps: int, nodes: int) -> Row:
        asked = self.prompts[index]
        return Row(*setting, asked.suite, asked.key, len(text), steps, nodes, hashed(text))


def hashed(text: Sequence[int]) -> str:
    return blake2b(repr(list(text)).encode(), digest_size=8).hexdigest()


def interpreter(venv: Path) -> Path:
    """The environment's Python; made where it is missing."""
    python, mark, wanted = venv / "bin" / "python", venv / "beside.txt", "\n".join([f"dejavuu=={VERSION}", *PINNED])
    if not mark.is_file() or mark.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)], check=True)
        (site,) = venv.glob("lib/python*/site-packages")
        (site / "beside.pth").write_text(sysconfig.get_path("purelib") + "\n")
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, *PINNED], check=True)
        subprocess.run([*install, "--no-deps", "--ignore-requires-python", f"dejavuu=={VERSION}"], check=True)
        mark.write_text(wanted)
    return python


def theirs(python: Path, job: Job, wanted: Sequence[Setting]) -> Iterator[Row]:
    """dejavuu's rows of the settings, in order."""
    settings = [{"drafter": drafter_of(name), "kept": kept(name), "budget": budget} for name, budget in wanted]
    order = {"model": model_source(job.model), "dtype": "float32", "tokens": job.tokens, "threads": job.threads}
    order |= {"eos": job.eos, "width": WIDTH, "settings": settings, "prompts": [asked.ids for asked in job.prompts]}
    with subprocess.Popen([python, WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        with process.stdin as stdin:
            stdin.write(json.dumps(order))
        for line in process.stdout:
            found = json.loads(line)
            setting = wanted[found["setting"]]
            yield job.row(setting, found["prompt"], found["text"], found["steps"], found["forward_tokens"])
    if process.returncode:
        raise click.ClickException(f"dejavuu's process ended with {process.returncode}")


def drafter_of(system: str) -> str:
    """The drafter's name in the worker, of a system such as "dejavuu lookup3, kept"."""
    return system.removeprefix("dejavuu ").partition(",")[0]


def kept(system: str) -> bool:
    return system.endswith(f", {KEPT}")


def ours(model: Any, job: Job, wanted: Sequence[Setting]) -> Iterator[Row]:
    for name, budget in wanted:
        tenant = f"{name}, {budget}" if kept(name) else None
        config = lade.LookaheadConfig(budget=budget, adapt=False, sources=OURS[name], tenant=tenant)
        for index, asked in enumerate(job.prompts):
            ids = torch.tensor([asked.ids])
            text = lade.generate(
                model,
                ids,
                attention_mask=torch.ones_like(ids),
                config=config,
                do_sample=False,
                eos_token_id=job.eos,
                max_new_tokens=job.tokens,
            )
            stats = lade.last_stats()
            assert stats is not None
            if stats.fallback is not None:
                raise click.ClickException(f"lade decoded plainly: {stats.fallback}")
            new = text[0, ids.shape[1] :].tolist()
            yield job.row((name, budget), index, new, stats.steps, stats.forward_tokens)


def chosen(suites: Sequence[str], number: int) -> list[tuple[str, str, str]]:
    """The suite, the hash and the text of the first prompts of the half to report."""
    try:
        found = {suite: [prompt for prompt in SUITES[suite].load() if half_of(prompt) == REPORT] for suite in suites}
    except SuiteError as error:
        raise click.ClickException(str(error)) from error
    return [(suite, digest(prompt), prompt.text) for suite, prompts in found.items() for prompt in prompts[:number]]


def complete(path: Path, head: dict[str, object], number: int) -> list[Row]:
    """The rows of complete settings that an earlier run of these options wrote; the file loses all others."""
    rows: list[Row] = []
    if path.is_file():
        lines = path.read_text().split("\n")[:-1]  # an interrupt may leave a part of a line
        found = json.loads(lines[0]) if lines else {}
        if any(found.get(name) != value for name, value in head.items()):
            raise click.ClickException(f"{path} holds a run of other options: name another file")
        rows = [Row(**json.loads(line)) for line in lines[1:]]
    counts = Counter(row.setting for row in rows)
    rows = [row for row in rows if counts[row.setting] == number]
    lines = [json.dumps(head | {"machine": describe(torch.device("cpu"))}), *(json.dumps(asdict(row)) for row in rows)]
    path.write_text("".join(line + "\n" for line in lines))
    return rows


def report(rows: Sequence[Row]) -> Iterator[str]:
    """Lines: S of every setting, then our S over that of dejavuu's best drafter at each budget."""
    suites = [ALL, *dict.fromkeys(row.suite for row in rows)]
    table: dict[Setting, list[Row]] = defaultdict(list)
    texts: dict[tuple[str, str], set[str]] = defaultdict(set)
    for row in rows:
        table[row.setting].append(row)
        texts[row.suite, row.prompt].add(row.text)
    yield " | ".join(["S", "T at most", "T", *suites])
    for (system, budget), found in table.items():
        nodes = sum(row.forward_tokens for row in found) / sum(row.steps for row in found)
        yield " | ".join(
            [system, str(budget), f"{nodes:.1f}", *(f"{pooled(of(found, suite)):.2f}" for suite in suites)]
        )
    yield ""
    yield " | ".join(["ratio of S", "T at most", "beside", *suites])
    for setting, found in table.items():
        best = best_rival(table, setting)
        if best is not None:
            cells = [shown(ratio(of(found, suite), of(table[best], suite))) for suite in suites]
            yield " | ".join([setting[0], str(setting[1]), best[0], *cells])
    yield f"prompts: {len(texts)}; with one text by all systems: {sum(len(found) == 1 for found in texts.values())}"


def best_rival(table: Mapping[Setting, Sequence[Row]], setting: Setting) -> Setting | None:
    """Of dejavuu's settings with the same budget that keep as much: the one with the highest S over all prompts."""
    system, budget = setting
    rivals = [
        key for key in table if key[0].startswith("dejavuu ") and key[1] == budget and kept(key[0]) == kept(system)
    ]
    return max(rivals, key=lambda key: pooled(table[key])) if rivals and system in OURS else None


def of(rows: Sequence[Row], suite: str) -> list[Row]:
    return [row for row in rows if suite in (ALL, row.suite)]


def pooled(rows: Sequence[Row]) -> float:
    return sum(row.new_tokens for row in rows) / sum(row.steps for row in rows)


def ratio(one: Sequence[Row], other: Sequence[Row]) -> Estimate:
    theirs = {(row.suite, row.prompt): row.rate for row in other}
    pairs = [(row.rate, theirs[row.suite, row.prompt]) for row in one]
    return pooled_rate_ratio([pair for pair in pairs if pair[0][1] and pair[1][1]])


def shown(found: Estimate) -> str:
    interval = "" if found.low is None else f" ({found.low:.2f}–{found.high:.2f})"
    return f"{found.median:.2f}{interval}"


@click.command()
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--venv", required=True, type=click.Path(path_type=Path), help="Folder of dejavuu's environment.")
@click.option("--model", default="smollm2-135m", show_default=True, callback=MODEL)
@click.option("--suites", default="mt_bench,human_eval,gsm8k", show_default=True, callback=names_among(SUITES))
@click.option("--n", "number", default=4, show_default=True, type=click.IntRange(min=1), help="Prompts of a suite.")
@click.option("--tokens", default=128, show_default=True, type=click.IntRange(min=1), help="New tokens of a prompt.")
@click.option(
    "--budgets", default="16,32,64", show_default=True, callback=integers_from(2), help="Tokens in a forward."
)
@click.option(
    "--drafters", default="pld_recycle,lookup3,lookup2", show_default=True, help="dejavuu's; see dejavuu_worker.py."
)
@click.option("--threads", default=available_cores(), type=click.IntRange(min=1), help="[default: all cores]")
def main(
    out: Path,
    venv: Path,
    model: str,
    suites: list[str],
    number: int,
    tokens: int,
    budgets: list[int],
    drafters: str,
    threads: int,
) -> None:
    """Write tokens per step of both systems to OUT, and print them with their ratios and 95 % bootstrap intervals."""
    prompts = chosen(suites, number)
    head = {
        "model": model,
        "tokens": tokens,
        "dtype": "float32",
        "dejavuu": VERSION,
        "prompts": [key for _, key, _ in prompts],
    }
    rows = complete(out, head, len(prompts))
    python = interpreter(venv)
    torch.set_num_threads(threads)
    loaded, tokenizer = load(model, dtype="float32")
    asked = [Asked(suite, key, tuple(Conversation(Style(tokenizer)).ask(text))) for suite, key, text in prompts]
    eos = loaded.generation_config.eos_token_id
    job = Job(model, asked, tokens, threads, eos[0] if isinstance(eos, list) else eos)
    lade.warm_up(loaded, tokenizer=tokenizer)
    done = {row.setting for row in rows}
    names = [f"dejavuu {drafter}, {keeps}" for drafter in drafters.split(",") for keeps in (NEW, KEPT)]
    mine, other = (
        [(name, budget) for budget in budgets for name in systems if (name, budget) not in done]
        for systems in (OURS, names)
    )
    found = chain(ours(loaded, job, mine), theirs(python, job, other) if other else ())
    total = (len(mine) + len(other)) * len(prompts)
    with out.open("a") as file, click.progressbar(found, length=total, label="prompts") as bar:
        for row in bar:
            file.write(json.dumps(asdict(row)) + "\n")
            file.flush()
            rows.append(row)
    for line in report(rows):
        click.echo(line)


if __name__ == "__main__":
    main()
