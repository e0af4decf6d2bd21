"""What a run left in its folder, read back: its records and how it was made. Knows no statistics."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lade.applications.bench.records import RESULTS, Record, read_records
from lade.applications.bench.runfile import RUN, read_run
from lade.base.shown import shown

PARTING = {"index": int, "gap": float, "ulps": float, "explained": bool}  # what the report reads of one


@dataclass(frozen=True)
class Results:
    """A run that ended or was interrupted."""

    folder: Path
    run: dict[str, Any]
    records: list[Record]


def read_results(folder: Path) -> Results:
    """ValueError names the file, and in it the line and the field, that cannot be used."""
    path = folder / RESULTS
    records = some_records(path)
    for number, record in enumerate(records, 1):
        _check_parting(record.parting, f"{path}: record {number}")
    run = read_run(folder / RUN)
    check_run(run, folder / RUN)
    return Results(folder, run, records)


def some_records(path: Path) -> list[Record]:
    """At least one. ValueError names the file, the line and the field that cannot be used."""
    records = read_records(path)
    if not records:
        raise ValueError(f"{path}: holds no record")
    return records


def _check_parting(parting: dict[str, Any] | None, where: str) -> None:
    for name, kind in PARTING.items() if parting is not None else ():
        value = parting.get(name) if parting is not None else None
        if not isinstance(value, int if kind is int else (int, float) if kind is float else bool):
            raise ValueError(f"{where}: parting.{name}={shown(value)}: {kind.__name__} is needed")


def check_run(run: Mapping[str, Any], path: Path) -> None:
    """ValueError names the file and the field that has not the form in which a bench writes it."""
    _check(run, {"model": str}, path)
    options = run.get("options", {})
    if not isinstance(options, Mapping):
        raise ValueError(f"{path}: options={shown(options)}: an object is needed")
    varied = {"repeats": int, "temperature": list, "batch": list, "context": list}
    _check(options, {name: kind for name, kind in varied.items() if name in options}, path, "options.")
    for name, parts in {"tasks": {"prompts": int, "skipped": int, "turns_left_out": int}, "left_out": None}.items():
        entries = run.get(name, {})
        if not isinstance(entries, Mapping):
            raise ValueError(f"{path}: {name}={shown(entries)}: an object is needed")
        for key, entry in entries.items() if parts else ():
            if not isinstance(entry, Mapping):
                raise ValueError(f"{path}: {name}.{key}={shown(entry)}: an object is needed")
            _check(entry, parts or {}, path, f"{name}.{key}.")


def _check(values: Mapping[str, Any], kinds: Mapping[str, type], path: Path, prefix: str = "") -> None:
    for name, kind in kinds.items():
        if name not in values:
            raise ValueError(f"{path}: the field {shown(prefix + name)} is missing")
        if not isinstance(values[name], kind) or isinstance(values[name], bool):
            raise ValueError(f"{path}: {prefix}{name}={shown(values[name])}: {kind.__name__} is needed")
