"""What the choice of draft sizes is worth, by a clock that the machine does not disturb: real texts, simulated times.

An engine decodes prompts; its steps take as long as a linear model of a machine says, times lognormal noise and a few
outliers. So a change of the pace (`lade.pace`) shows within a percent on a noisy machine, and the same command gives
the same figures. Each is the simulated time without looking for drafts over that with: of batches, whose rows end one
by one, and of a load under which each row that ends makes room for the next request. The times that `--machine` names
were fitted to steps of models on 2 cores of an Intel Xeon with AVX-512. Needs no network: `python
benchmarks/simulated_pace.py`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from statistics import harmonic_mean
from typing import Any
from unittest.mock import patch

import click
import torch
from integerlists import positive_integers
from namelists import SUITE
from printing import Report

import lade
from lade.applications.bench.machine import available_cores
from lade.applications.bench.promptsets import from_suites
from lade.applications.options import MODEL
from lade.drafters import compiling, factory
from lade.entry import engine
from lade.pace.belief import Belief
from lade.pace.cost import StepCost
from lade.pace.pace import Pace, WholeBudget
from lade.pace.reading import WHOLE
from lade.pace.shared import SharedCost

LOADS = ("steady", "batch")
OUTLIERS = (2, 3, 5)  # times as long as other steps


@dataclass(frozen=True)
class Machine:
    """Milliseconds: of any step, and further ones by its rows and tokens; of any look for drafts, and by its rows."""

    step: float
    step_row: float
    step_token: float
    look: float
    look_row: float

    def step_of(self, rows: int, tokens: int) -> float:
        return self.step + self.step_row * rows + self.step_token * tokens

    def look_of(self, rows: int) -> float:
        return self.look + self.look_row * rows


MACHINES = {
    "stories260K": Machine(0.7, 0.06, 0.035, 0.2, 0.09),
    "lade-code-8M-draft": Machine(0.6, 0.06, 0.05, 0.18, 0.08),
    "lade-code-8M": Machine(1.0, 0.1, 0.1, 0.15, 0.09),
    "smollm2-135m": Machine(16.0, 0.3, 0.9, 0.3, 0.12),
}


class Simulated:
    """A machine whose speed drifts, and on which other processes run now and then.

    Args:
        noise: standard deviation of the logarithm of a step's time.

    Attributes:
        now: the clock, in seconds.
        taken: milliseconds of all steps since it was set to 0, without the noise.
        steps, looks: their numbers.
    """

    def __init__(self, machine: Machine, noise: float, seed: int = 1) -> None:
        self.machine, self.noise = machine, noise
        self.now, self.taken, self.steps, self.looks = 0.0, 0.0, 0, 0
        self._random, self._drift, self._factor = random.Random(seed), 0.0, 1.0

    def begin(self) -> None:
        self.steps += 1
        self._drift = 0.999 * self._drift + self._random.gauss(0, self.noise / 20)
        self._factor = math.exp(self._drift + self._random.gauss(0, self.noise))
        if self._random.random() < self.noise / 4:
            self._factor *= self._random.choice(OUTLIERS)

    def take(self, milliseconds: float) -> None:
        self.taken += milliseconds
        self.now += milliseconds * 1e-3 * self._factor


class Timed(Pace):
    """A pace whose steps take what a simulated machine says. `off`: none of them looks for drafts."""

    def __init__(self, machine: Simulated, *arguments: Any, **others: Any) -> None:
        super().__init__(*arguments, now=lambda: machine.now, **others)
        self.machine, self.off = machine, False
        self._looked, self._carried = 0.0, (1, 1)  # milliseconds of the step's look; its rows and tokens

    def begin(self, contexts: Sequence[int], beliefs: Sequence[Belief]) -> int:
        rows = len(beliefs)
        self.machine.begin()
        room = rows if self.off else super().begin(contexts, beliefs)
        self._looked = self.machine.machine.look_of(rows) if room > rows else 0.0
        self.machine.looks += room > rows
        return room

    def carry(self, lengths: Sequence[int]) -> None:
        self.machine.take(0.6 * self._looked)
        self._carried = len(lengths), self.sharing.tokens(lengths)
        if not self.off:
            super().carry(lengths)

    def verified(self) -> None:
        self.machine.take(self.machine.machine.step_of(*self._carried))
        if not self.off:
            super().verified()

    def ended(self) -> None:
        self.machine.take(0.4 * self._looked)
        if not self.off:
            super().ended()


@dataclass(frozen=True)
class Worth:
    """So many rows: speed with drafts over that without, of all rounds and the worst, and how many steps looked."""

    load: str
    rows: int
    ratio: float
    worst: float
    looks: float

    def __str__(self) -> str:
        return (
            f"{self.load:6}  {self.rows:3} rows  {self.ratio:.3f} times as fast (worst round {self.worst:.3f}), "
            f"{self.looks:.0%} of the steps looked"
        )


class Load:
    """An engine with a simulated machine, and its prompts."""

    def __init__(self, engine: lade.Engine, pace: Timed, prompts: Sequence[list[int]], tokens: int) -> None:
        self.engine, self.pace, self.prompts, self.tokens = engine, pace, prompts, tokens

    def worth(self, load: str, rows: int, rounds: int) -> Worth:
        ratios, steps, looks = [], 0, 0
        for number in range(rounds):
            rates = []
            for self.pace.off in (False, True):
                machine = self.pace.machine
                machine.taken, machine.steps, machine.looks = 0.0, 0, 0
                rates.append(self._decode(load, rows, number * rows) / machine.taken)
                steps += machine.steps * (not self.pace.off)
                looks += machine.looks
            ratios.append(rates[0] / rates[1])
        return Worth(load, rows, harmonic_mean(ratios), min(ratios), looks / steps)

    def _decode(self, load: str, rows: int, first: int) -> int:
        """Decode until all rows of a batch have ended, or twice as many. Returns the new tokens."""
        requests = [self._ask(first + row) for row in range(rows)]
        most = rows if load == "batch" else 2 * rows
        ended = 0
        while ended < most:
            self.engine.step()
            finished = sum(request.finished for request in requests)
            if load != "batch":
                requests += [self._ask(first + len(requests) + more) for more in range(finished - ended)]
            ended = finished
        for request in requests:
            self.engine.cancel(request)
        self.engine.run()
        return sum(len(request.tokens) - request.prompt_length for request in requests)

    def _ask(self, number: int) -> Any:
        ids = torch.tensor([self.prompts[number % len(self.prompts)]])
        asked = {"attention_mask": torch.ones_like(ids), "do_sample": False, "eos_token_id": None}
        return self.engine.submit(ids, max_new_tokens=self.tokens, **asked)


@contextmanager
def timed_by(machine: Simulated) -> Iterator[list[Timed]]:
    """Every pace that is made inside is of this machine, and knows no costs yet; prompts are read as they come.

    No model has a warm table, so that figures do not depend on the user's cache folder.
    """
    made: list[Timed] = []

    def pace(*arguments: Any, **others: Any) -> WholeBudget:
        made.append(Timed(machine, *arguments, **others))
        return made[-1]

    unknown: Callable[..., SharedCost] = lambda *_, **__: SharedCost(StepCost(), lambda logs: None)  # noqa: E731
    with (
        patch.object(factory, "Pace", pace),
        patch.object(factory, "shared_cost", unknown),
        patch.object(engine, "ReadingPace", lambda: WHOLE),
        patch.object(factory.warm, "cached", lambda model: None),
        patch("lade.target.model.tried", lambda: 0),  # which ways are tried depends on the real clock
    ):
        yield made


@click.command()
@click.argument("model", default="lade-code-8M", callback=MODEL)
@click.option("--machine", type=click.Choice(sorted(MACHINES)), help="[default: the model's, or that of lade-code-8M]")
@click.option("--suite", default="human_eval", show_default=True, type=SUITE, help="Prompts, as of `lade bench`.")
@click.option("--rows", default="1,2,4,8,16", show_default=True, callback=positive_integers)
@click.option("--tokens", default=96, show_default=True, type=click.IntRange(min=1), help="New tokens of each row.")
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(min=1))
@click.option("--noise", default=0.1, show_default=True, type=click.FloatRange(min=0))
@click.option("--threads", default=available_cores(), type=click.IntRange(min=1), help="[default: all cores]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
def main(
    model: str,
    machine: str | None,
    suite: str,
    rows: list[int],
    tokens: int,
    rounds: int,
    noise: float,
    threads: int,
    as_json: bool,
) -> None:
    """Speed with drafts over that without, for MODEL, a name or a folder."""
    torch.set_num_threads(threads)
    compiling.begin()
    compiling.wait()  # texts and trees are the same without machine code, and take longer
    name = machine or (model if model in MACHINES else "lade-code-8M")
    loaded, tokenizer = lade.models.load(model, dtype="float32")
    texts = [prompt.text for prompt in from_suites(suite, None, 0, execute=False)[0].prompts]
    longest = loaded.config.get_text_config().max_position_embeddings - tokens
    prompts, found = [ids for ids in (tokenizer(text).input_ids for text in texts) if len(ids) <= longest], []
    report = Report(asdict(MACHINES[name]), as_json)
    for load in LOADS:
        for number in rows:
            simulated = Simulated(MACHINES[name], noise)
            with timed_by(simulated) as made, lade.Engine(loaded, slots=max(rows), prefix_bytes=0) as opened:
                found.append(Load(opened, made[0], prompts, tokens).worth(load, number, rounds))
            report.line(str(found[-1]))
    given = {"model": model, "suite": suite, "tokens": tokens, "noise": noise, "rounds": rounds}
    report.end(**given, worth=[asdict(each) for each in found])


if __name__ == "__main__":
    main()
