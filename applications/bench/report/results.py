"""Reading a run's folder: its records and its run.json. Knows no statistics."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lade.applications.bench.records import RESULTS, Record, read_records
from lade.applications.bench.runfile import RUN, read_run
from lade.applications.bench.samples import SAMPLES, Sample, read_samples
from lade.base.shown import invalid, shown

PARTING = {"index": int, "gap": float, "ulps": float, "explained": bool}  # the fields that the report uses


@dataclass(frozen=True)
class Results:
    """A complete or interrupted run."""

    folder: Path
    run: dict[str, Any]
    records: list[Record]
    samples: list[Sample] = field(default_factory=list)


def read_results(folder: Path) -> Results:
    """ValueError names the file, the line and the invalid field."""
    path = folder / RESULTS
    records = some_records(path)
    for number, record in enumerate(records, 1):
        _check_parting(record.parting, f"{path}: record {number}")
    run = read_run(folder / RUN)
    check_run(run, folder / RUN)
    return Results(folder, run, records, read_samples(folder / SAMPLES))


def some_records(path: Path) -> list[Record]:
    """At least one record. ValueError names the file, the line and the invalid field."""
    records = read_records(path)
    if not records:
        raise ValueError(f"{path}: must hold at least one record")
    return records


def _check_parting(parting: dict[str, Any] | None, where: str) -> None:
    for name, kind in PARTING.items() if parting is not None else ():
        value = parting.get(name) if parting is not None else None
        if not isinstance(value, int if kind is int else (int, float) if kind is float else bool):
            raise invalid(f"{where}: parting.{name}", kind.__name__, value)


def check_run(run: Mapping[str, Any], path: Path) -> None:
    """ValueError names the file and the invalid field."""
    _check(run, {"model": str}, path)
    options = run.get("options", {})
    if not isinstance(options, Mapping):
        raise invalid(f"{path}: options", "an object", options)
    varied = {"repeats": int, "temperature": list, "batch": list, "context": list}
    _check(options, {name: kind for name, kind in varied.items() if name in options}, path, "options.")
    for name, parts in {"tasks": {"prompts": int, "skipped": int, "turns_left_out": int}, "left_out": None}.items():
        entries = run.get(name, {})
        if not isinstance(entries, Mapping):
            raise invalid(f"{path}: {name}", "an object", entries)
        for key, entry in entries.items() if parts else ():
            if not isinstance(entry, Mapping):
                raise invalid(f"{path}: {name}.{key}", "an object", entry)
            _check(entry, parts or {}, path, f"{name}.{key}.")


def _check(values: Mapping[str, Any], kinds: Mapping[str, type], path: Path, prefix: str = "") -> None:
    for name, kind in kinds.items():
        if name not in values:
            raise ValueError(f"{path}: the field {shown(prefix + name)} is missing")
        if not isinstance(values[name], kind) or isinstance(values[name], bool):
            raise invalid(f"{path}: {prefix}{name}", kind.__name__, values[name])
