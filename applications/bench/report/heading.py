"""The heading of a report: model, device, machine, versions, date, prompts. Knows run.json and records, no figure."""

from collections.abc import Iterator, Mapping
from typing import Any

from lade.applications.bench.records import Record
from lade.applications.bench.report.findings import Findings
from lade.applications.bench.report.rows import by


def heading(findings: Findings) -> list[tuple[str, str]]:
    """(name, value) of what a reader must know of the run; without what run.json does not hold."""
    return [(name, text) for name, text in _entries(findings) if text]


def _entries(findings: Findings) -> Iterator[tuple[str, str]]:
    run = findings.run
    machine, options = _part(run, "machine"), _part(run, "options")
    yield "Model", model_of(run)
    yield "Draft model", str(options.get("draft") or "")
    yield "Weights", weights_of(run)
    yield "Device", device_of(run)
    yield "Machine", machine_of(run)
    yield "Versions", ", ".join(f"{name} {version}" for name, version in versions_of(run))
    yield "Date (UTC)", str(machine.get("date", "")).replace("T", " ").removesuffix("+00:00")
    yield "Prompts", prompts_of([record for records in findings.records.values() for record in records])
    yield "Decoding", decoding_of(options)


def model_of(run: Mapping[str, Any]) -> str:
    """A widened model is always labelled."""
    return f"{run.get('model', 'unnamed model')}{' (widened)' if run.get('widened_from') else ''}"


def weights_of(run: Mapping[str, Any]) -> str:
    options = _part(run, "options")
    quants = [("", options.get("quant")), (" of the draft model", options.get("draft_quant"))]
    told = [f"quantised{whose}: {quant}" for whose, quant in quants if quant]
    return ", ".join([*([str(run["dtype"])] if "dtype" in run else []), *told])


def device_of(run: Mapping[str, Any]) -> str:
    return str(_part(run, "machine").get("device", ""))


def machine_of(run: Mapping[str, Any]) -> str:
    machine = _part(run, "machine")
    counts = [_counted(machine[f"{name}s"], name) for name in ("core", "thread") if f"{name}s" in machine]
    return ", ".join([str(machine["cpu"]), *counts] if "cpu" in machine else counts)


def _counted(number: object, name: str) -> str:
    return f"{number} {name}" if number == 1 else f"{number} {name}s"


def versions_of(run: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    machine = _part(run, "machine")
    yield from _part(machine, "versions").items()
    if "python" in machine:
        yield "Python", str(machine["python"])


def prompts_of(records: list[Record]) -> str:
    """`gsm8k 8, human_eval 8, × 2 repeats`."""
    counts = {task: len({record.prompt_id for record in own}) for task, own in by(records, lambda r: r.task).items()}
    repeats = 1 + max(record.repeat for record in records)
    told = ", ".join(f"{task} {count}" for task, count in counts.items())
    return told if repeats == 1 else f"{told}, × {repeats} repeats"


def decoding_of(options: Mapping[str, Any]) -> str:
    temperatures = options.get("temperature", [])
    most = options.get("max_new_tokens")
    return ", ".join(
        [
            *("greedy" if not temperature else f"temperature {temperature:g}" for temperature in temperatures),
            *([f"at most {most} new tokens"] if most else []),
        ]
    )


def _part(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = values.get(name)
    return part if isinstance(part, Mapping) else {}
