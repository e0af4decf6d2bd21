"""Measurements in a JSON-lines file: the first line says what is measured, each further line is one measurement.

Each is written at once, so that an interrupted search can go on. Knows no search.
"""

from __future__ import annotations

import json
from collections import UserDict
from pathlib import Path
from typing import Any

from lade.applications.search.autotune import MeasurementKey
from lade.base.shown import shown
from lade.files.atomic import put_in_place
from lade.files.jsonobject import json_object
from lade.files.regularfile import MEBIBYTE, AbsentFileError, naming, read_bytes

LARGEST_FILE = 64 * MEBIBYTE


class MeasurementFile(UserDict[MeasurementKey, list[float]]):
    """A mapping whose new entries are appended to its file.

    Args:
        head: what every measurement depends on, as JSON values.

    Raises:
        ValueError: the file holds no measurements, or has another head; the message names the differences.
        OSError: it cannot be read or written.
    """

    def __init__(self, path: Path, head: dict[str, Any]) -> None:
        super().__init__()
        self.path = path
        head = json.loads(json.dumps(head))
        content = _content(path)
        if not content:
            put_in_place(path, (json.dumps(head) + "\n").encode())
            return
        first, *rest = _whole_lines(path, content)
        _check_head(json_object(first, f"{path}:1"), head, path)
        for number, line in enumerate(rest, 2):
            where = f"{path}:{number}"
            key, ratios = _entry(json_object(line, where), where)
            self.data[key] = ratios

    def __setitem__(self, key: MeasurementKey, ratios: list[float]) -> None:
        stage, label, prompt = key
        line = json.dumps({"stage": stage, "candidate": label, "prompt": prompt, "ratios": ratios})
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        super().__setitem__(key, ratios)


def _content(path: Path) -> bytes:
    """Empty if there is no file yet."""
    try:
        with naming(path):
            return read_bytes(path, LARGEST_FILE)
    except AbsentFileError:
        return b""


def _whole_lines(path: Path, content: bytes) -> list[str]:
    """The complete lines. An incomplete last one, left by a killed process, is cut off the file too."""
    try:
        whole, end, cut = content.rpartition(b"\n")
        lines = whole.decode().split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: is not a file of measurements ({error})") from error
    if not end:
        raise ValueError(f"{path}: is not a file of measurements (it has no complete line)")
    if cut:
        with path.open("r+b") as file:
            file.truncate(len(whole) + len(end))
    return lines


def _check_head(found: dict[str, Any], head: dict[str, Any], path: Path) -> None:
    if found.get("kind") != head.get("kind") or found.get("format") != head.get("format"):
        raise ValueError(f"{path}: is not a file of measurements of this version")
    changed = [name for name in head | found if found.get(name) != head.get(name)]
    if changed:
        theirs, ours = (", ".join(f"{name}={shown(values.get(name))}" for name in changed) for values in (found, head))
        raise ValueError(f"{path}: was measured with {theirs}; this run has {ours}")


def _entry(row: dict[str, Any], where: str) -> tuple[MeasurementKey, list[float]]:
    stage, label, prompt, ratios = (row.get(name) for name in ("stage", "candidate", "prompt", "ratios"))
    if (
        not isinstance(stage, str)
        or not isinstance(label, str)
        or not isinstance(prompt, int)
        or not isinstance(ratios, list)
        or not ratios
        or not all(isinstance(ratio, float) and 0 < ratio < float("inf") for ratio in ratios)
    ):
        raise ValueError(f"{where}: is not a measurement")
    return (stage, label, prompt), ratios
