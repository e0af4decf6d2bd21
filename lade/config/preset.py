"""A preset's file: the settings that `lade tune` found for each mode, and which mode was the fastest.

    {"kind": "preset", "format": 1, "mode": "auto", "settings": {"auto": {"BUDGET": 16}, "lookahead": {"LEVEL": 5}}}

Further entries say where the settings come from; they are not read here. Knows no range of any setting.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from lade.base.shown import invalid, shown
from lade.config.settings import IN_PRESETS, MODES
from lade.files.atomic import put_in_place
from lade.files.cachefolder import cache_folder
from lade.files.jsonobject import read_object
from lade.files.regularfile import MEBIBYTE

KIND, FORMAT = "preset", 1
MOST = MEBIBYTE  # of a file
SUFFIX = ".json"


def preset_file(name: str | os.PathLike[str]) -> Path:
    """Where a preset lies: a value with a folder or `.json` in it is a path, any other a name in the cache folder."""
    if not isinstance(name, str | os.PathLike) or not str(name).strip(". "):
        raise invalid("PRESET", f"the path of a preset's {SUFFIX} file, or a preset's name", name)
    try:
        path = Path(name).expanduser()
        if path.suffix != SUFFIX and path.name == name:
            return cache_folder() / "presets" / f"{name}{SUFFIX}"
    except (OSError, RuntimeError) as error:  # there is no such user, or one without a home folder
        raise ValueError(f"PRESET={name!r}: {error}") from error
    return path


def read(path: Path, mode: str | None) -> tuple[str, dict[str, Any]]:
    """The mode asked for, else the preset's own, and its settings.

    Raises:
        ValueError: names the file, the field, what is allowed and the value.
    """
    where = f"PRESET={str(path)!r}"
    preset = read_object(path, MOST, where)
    if preset.get("kind") != KIND or preset.get("format") != FORMAT:
        found = f"{shown(preset.get('kind'))} and {shown(preset.get('format'))}"
        raise ValueError(f"{where}: kind and format must be {KIND!r} and {FORMAT}, got {found}")
    settings, fastest = _checked(preset.get("settings"), where), preset.get("mode")
    modes = " or ".join(map(repr, settings))
    if not isinstance(fastest, str) or fastest not in settings:
        raise invalid(f"{where}: mode", f"a mode in its settings, {modes}", fastest)
    chosen = mode or fastest
    if chosen not in settings:
        raise invalid("MODE", f"{modes}, which {where} has settings for", mode)
    return chosen, settings[chosen]


def _checked(settings: Any, where: str) -> dict[str, dict[str, Any]]:
    """The settings of each mode, if all modes and names are known; values are not looked at."""
    if not isinstance(settings, dict) or not settings or not all(isinstance(own, dict) for own in settings.values()):
        raise invalid(f"{where}: settings", "an object of objects, one for each mode", settings)
    for mode, own in settings.items():
        if mode not in MODES:
            raise invalid(f"{where}: a mode in settings", " or ".join(map(repr, MODES)), mode)
        wrong = next((name for name in own if name not in IN_PRESETS), None)
        if wrong is not None:
            got = f"{wrong}={shown(own[wrong])}"
            raise ValueError(f"{where}: settings of {mode!r} must be among {', '.join(IN_PRESETS)}, got {got}")
    return settings


def write(path: Path, mode: str, settings: dict[str, dict[str, Any]], origin: dict[str, Any]) -> dict[str, Any]:
    """Put the file in place in one step, and return what it holds."""
    preset = {"kind": KIND, "format": FORMAT, "mode": mode, "settings": settings} | origin
    put_in_place(path, (json.dumps(preset, indent=1) + "\n").encode())
    return preset
