"""`lade tune --draft`: acceptance against the number of candidates, and the best tree of candidates for two models.

Knows the terminal; the trees are `lade.applications.search.widths`'s, the timing is `lade.applications.tuning`'s.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from rich.table import Table

from lade.applications.bench.companion import Companion
from lade.applications.bench.contenders import contenders
from lade.applications.bench.conversation import Conversation
from lade.applications.bench.machine import describe
from lade.applications.bench.methods import METHODS, MethodOptions
from lade.applications.bench.report.texttable import NO_INTERVAL, NONE, between, ratio_between
from lade.applications.bench.task import Task, ask, generate_arguments, room_of
from lade.applications.candidates import Setting
from lade.applications.interval import Estimate
from lade.applications.output import show
from lade.applications.search.autotune import Candidate, Measurements
from lade.applications.search.ranks import ranks_of
from lade.applications.search.widths import MOST, Ranks, TreeSteps, acceptance, best_by_depth, best_by_first, trees
from lade.applications.standings import verdict
from lade.applications.tuning import Result, Tuning, tune
from lade.facts.fingerprint import fingerprint
from lade.files.atomic import put_in_place
from lade.memory.warm.progress import progress_bar

if TYPE_CHECKING:
    from transformers import PreTrainedModel

METHOD = "multi_candidate"
CAPTION = f"best on these prompts; S: new tokens / forwards after the prefill, greedy, from ranks alone; {NO_INTERVAL}"


@dataclass(frozen=True)
class Findings:
    """What the ranks of the texts tell."""

    acceptance: dict[int, Estimate]  # by candidates per node
    firsts: dict[int, TreeSteps]  # the best tree by candidates after the root
    depths: list[TreeSteps]  # the best tree of each depth


def find(tuning: Tuning, model: PreTrainedModel, draft: Companion, task: Task, nodes: int) -> Findings:
    """Decode every prompt plainly, once, and rank its tokens under the draft model."""
    texts: list[Ranks] = []
    arguments = generate_arguments(model, tuning.run, pad=0)
    with progress_bar("ranks") as move:
        for done, fitting in enumerate(task.prompts):
            move(done, len(task.prompts))
            prompt = ask(Conversation(task.style), fitting, 0, tuning.run)
            texts.append(ranks_of(model, draft.model, prompt, arguments))
    found = trees(texts, nodes)
    told = [ranks for ranks in texts if ranks]
    rates = {k: acceptance(told, k) for k in range(1, min(MOST, nodes) + 1)}
    return Findings(rates, best_by_first(found), best_by_depth(found))


def narrower(model: PreTrainedModel, draft: PreTrainedModel) -> PreTrainedModel:
    """The one with the fewer positions: prompts must fit both."""
    rooms = {one: room_of(one, 0) for one in (model, draft)}
    bounded = {one: room for one, room in rooms.items() if room is not None}
    return min(bounded, key=lambda one: bounded[one], default=model)


def check_pair(model: PreTrainedModel, draft: Companion) -> None:
    """ValueError where the draft model cannot draft for the model."""
    reason = METHODS[METHOD].refusal(model, MethodOptions(), draft)
    if reason is not None:
        raise ValueError(f"--draft: {reason}")


def timed(
    tuning: Tuning, model: PreTrainedModel, draft: Companion, task: Task, known: Measurements, found: Findings
) -> Result:
    """Run the best tree of each depth in pairs with plain decoding."""
    settings = [_setting(tuning, tree, draft) for tree in found.depths]
    return tune(replace(tuning, settings=settings), model, task, known)


def label_of(tree: TreeSteps) -> str:
    return f"{METHOD}:widths={shown(tree)}"


def shown(tree: TreeSteps) -> str:
    return "-".join(map(str, tree.widths))


def _setting(tuning: Tuning, tree: TreeSteps, draft: Companion) -> Setting:
    label = label_of(tree)
    contender = next(one for one in contenders(label, tuning.options) if one.label == label)
    return Setting(Candidate(tree.nodes + 1, label), contender.beside(draft), METHOD, {})


def finish(
    tuning: Tuning,
    found: Findings,
    result: Result | None,
    models: tuple[PreTrainedModel, Companion],
    task: Task,
    as_json: bool,
) -> None:
    """Write the findings, and print both tables and how to use the best tree."""
    chosen = chosen_of(found, result)
    model, draft = models
    written = {
        "kind": "widths",
        "format": 1,
        "model": tuning.model,
        "draft": tuning.options.draft,
        "fingerprints": [fingerprint(model), fingerprint(draft.model)],
        "prompts": str(tuning.prompts),
        "run": asdict(tuning.run),
        "machine": describe(model.device),
        "widths": None if chosen is None else list(chosen.widths),
        "acceptance": {str(k): asdict(rate) for k, rate in found.acceptance.items()},
        "trees": [_entry(tree, result) for tree in dict.fromkeys([*found.firsts.values(), *found.depths])],
    }
    put_in_place(tuning.out, (json.dumps(written, indent=1) + "\n").encode())
    name = f"{tuning.model}, drafts by {tuning.options.draft} · {len(task.prompts)} prompts"
    show(
        acceptance_table(found, name),
        widths_table(found, result),
        *_remarks(tuning, chosen, task),
        found=written,
        as_json=as_json,
    )


def chosen_of(found: Findings, result: Result | None) -> TreeSteps | None:
    """The fastest tree; without timing the one with the fewest steps. None if none is faster than plain decoding."""
    if result is None:
        return found.depths[-1]
    label = None if result.best is None else result.best.candidate.label
    return next((tree for tree in found.depths if label_of(tree) == label), None)


def _entry(tree: TreeSteps, result: Result | None) -> dict[str, Any]:
    speeds = {} if result is None else {one.candidate.label: one.speed for one in result.standings}
    speed = speeds.get(label_of(tree))
    return {
        "widths": list(tree.widths),
        "nodes": tree.nodes,
        "tokens_per_step": asdict(tree.interval),
        "speed": None if speed is None else asdict(speed),
    }


def _remarks(tuning: Tuning, chosen: TreeSteps | None, task: Task) -> Sequence[str]:
    return [
        *([f"{task.skipped} prompts do not fit the models"] if task.skipped else []),
        str(tuning.out),
        "no tree is surely faster than plain decoding"
        if chosen is None
        else f"lade.MultiCandidate(draft, widths={chosen.widths})",
    ]


def acceptance_table(found: Findings, title: str) -> Table:
    table = Table(title=title, caption=f"α: share of tokens among the draft model's k likeliest (95%); {CAPTION}")
    for name in ("k", "α", "best widths from k", "nodes", "S"):
        table.add_column(name, justify="left" if name == "best widths from k" else "right")
    for k, rate in found.acceptance.items():
        tree = found.firsts.get(k)
        cells = (NONE,) * 3 if tree is None else (shown(tree), str(tree.nodes), between(tree.interval))
        table.add_row(str(k), between(rate), *cells)
    return table


def widths_table(found: Findings, result: Result | None) -> Table:
    """The best tree of each depth."""
    table = Table(title="Best widths by depth", caption="deeper trees only where they bring more tokens per step")
    for name in ("widths", "nodes", "S (95%)", *(["× plain (95%)", "verdict"] if result is not None else [])):
        table.add_column(name, justify="left" if name in ("widths", "verdict") else "right")
    standings = {} if result is None else {standing.candidate.label: standing for standing in result.standings}
    for tree in found.depths:
        standing = standings.get(label_of(tree))
        row = [shown(tree), str(tree.nodes), between(tree.interval)]
        if standing is not None and result is not None:
            best = result.best is not None and result.best.candidate == standing.candidate
            row += [ratio_between(standing.speed), "chosen" if best else verdict(standing, False, result)]
        table.add_row(*row)
    return table
