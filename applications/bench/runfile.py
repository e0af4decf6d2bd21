"""run.json, beside the results: how they were made. Only the same run can be continued.

Knows no model and no method; the caller gives the contents.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lade.base.shown import shown
from lade.files.atomic import put_in_place
from lade.files.jsonobject import read_object
from lade.files.regularfile import MEBIBYTE

RUN = "run.json"
MAX_BYTES = 16 * MEBIBYTE
IGNORED = {"date", "out", "harness"}  # differ between sessions of a run
MAX_NAMED = 6  # differences in an error


def check_same(path: Path, head: Mapping[str, Any]) -> None:
    """ValueError if the file holds another run; names the differences."""
    there, asked = _flat(read_run(path)), _flat(json.loads(json.dumps(head)))
    differing = [name for name in dict.fromkeys([*there, *asked]) if there.get(name) != asked.get(name)]
    if differing:
        pairs = [(name, shown(there.get(name)), shown(asked.get(name))) for name in differing[:MAX_NAMED]]
        told = "; ".join(f"{name} is {theirs}, not {ours}" for name, theirs, ours in pairs)
        more = f" and {len(differing) - MAX_NAMED} more" if len(differing) > MAX_NAMED else ""
        raise ValueError(f"{path} must hold the same run, got another: {told}{more}; --overwrite replaces it")


def read_run(path: Path) -> dict[str, Any]:
    return read_object(path, MAX_BYTES, path)


def write_run(path: Path, head: Mapping[str, Any]) -> None:
    put_in_place(path, (json.dumps(head, indent=1) + "\n").encode())


def add_session(path: Path, spent: Mapping[str, float]) -> None:
    """Add a session's timings to those before; `overhead` is averaged, weighted by the measured time."""
    head = read_run(path)
    before = _spent(head.get("harness", {}), path)
    total = {name: round(before.get(name, 0.0) + seconds, 4) for name, seconds in spent.items()}
    weights = before.get("generate", 0.0), spent["generate"]
    own = before.get("overhead", 0.0) * weights[0] + spent["overhead"] * weights[1]
    total["overhead"] = round(own / sum(weights), 6) if sum(weights) else 0.0
    write_run(path, head | {"harness": {"sessions": before.get("sessions", 0) + 1} | total})


def _spent(harness: Any, path: Path) -> dict[str, float]:
    """ValueError unless it is an object of numbers."""
    numbers = isinstance(harness, dict) and all(type(value) in (int, float) for value in harness.values())
    if not numbers:
        raise ValueError(f"{path}: harness must be an object of numbers, got {shown(harness)}")
    return dict(harness)


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    """Entries of nested objects by dotted names, without the ignored ones."""
    if not isinstance(value, Mapping):
        return {name: value}
    found: dict[str, Any] = {}
    for key, part in value.items():
        if key not in IGNORED:
            found |= _flat(part, f"{name}.{key}" if name else key)
    return found
