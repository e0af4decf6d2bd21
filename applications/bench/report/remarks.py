"""Remarks from run.json: what is left out, and what an interrupted run still lacks."""

from collections.abc import Iterator
from math import prod

from lade.applications.bench.report.findings import Findings
from lade.applications.bench.report.ratios import calls_of
from lade.applications.bench.report.rows import by
from lade.applications.bench.report.texttable import FEW
from lade.applications.interval import ENOUGH


def remarks(findings: Findings) -> Iterator[str]:
    run = findings.run
    for method, reason in run.get("left_out", {}).items():
        yield f"{method} {'is left out where it cannot run' if method in findings.methods else 'did not run'}: {reason}"
    for task, counts in run.get("tasks", {}).items():
        if counts["skipped"]:
            yield f"{task}: {counts['skipped']} prompts do not fit the model's positions with the new tokens: skipped"
        if counts["turns_left_out"]:
            yield f"{task}: {counts['turns_left_out']} later turns do not fit: left out"
    few = {
        task: None
        for records in findings.records.values()
        for task, members in by(records, lambda record: record.task).items()
        if len(set(calls_of(members).values())) < ENOUGH
    }
    if few:
        yield f"{FEW}: no interval where fewer than {ENOUGH} prompts or batches ran: {', '.join(few)}"
    yield from unfinished(findings)


def unfinished(findings: Findings) -> Iterator[str]:
    """The part of the run without records."""
    options = findings.run.get("options", {})
    for condition, records in findings.records.items():
        for task, counts in findings.run.get("tasks", {}).items():
            done = len({(record.prompt_id, record.repeat) for record in records if record.task == task})
            asked = counts["prompts"] * options.get("repeats", 1)
            if done < asked:
                yield f"not finished: {done} of {asked} runs of {task} at {condition}"
    asked = prod(len(options.get(name, [None])) for name in ("temperature", "batch", "context"))
    if len(findings.records) < asked:
        yield f"not finished: {len(findings.records)} of {asked} combinations of temperature, batch and context"
