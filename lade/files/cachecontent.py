"""What lies in the cache folder, by kind, and the limit on its size. Files that lade did not make are left alone.

Models that the user pulled and presets are kept until the user removes them; the other kinds share LADE_CACHE_SIZE
bytes, from which the least recently used go first. Reads no content.
"""

from __future__ import annotations

import os
import re
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lade.base.environment import EnvironmentWarning
from lade.files.cachefolder import cache_folder
from lade.files.newfolder import UNFINISHED

KINDS = {  # kind: the paths in the folder, in the order in which they are tried
    "unfinished": (UNFINISHED, f"*/{UNFINISHED}"),
    "parts": ("warmpart-*.safetensors",),
    "tables": ("warm[0-9]*-*.safetensors",),
    "costs": ("cost[0-9]*-*.safetensors",),
    "compiled": ("compiled/*",),
    "downloads": ("pulled/*.whl",),
    "presets": ("presets/*.json", "presets/*.measurements.jsonl"),
    "models": ("pulled/*",),
}
KEPT = ("presets", "models")  # not limited
LIMIT = "LADE_CACHE_SIZE"
DEFAULT = 2 * 2**30
UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,18})?)\s*([A-Z]*)")
DAY = 24 * 3600.0  # seconds after which an unfinished file is no other process's work in progress


@dataclass(frozen=True)
class Entry:
    """A file or folder in the cache folder.

    Attributes:
        size: bytes, of a folder those of its files.
        used: when it was last written or read, in seconds since the epoch.
    """

    kind: str
    path: Path
    size: int
    used: float

    def remove(self) -> bool:
        """Whether it is gone now."""
        if self.path.is_dir() and not self.path.is_symlink():
            shutil.rmtree(self.path, ignore_errors=True)
        else:
            with suppress(OSError):
                self.path.unlink(missing_ok=True)
        return not self.path.exists()


def entries() -> list[Entry]:
    """All entries, the least recently used of each kind first. OSError where the folder cannot be read."""
    folder, found = cache_folder(), dict[Path, Entry]()
    for kind, patterns in KINDS.items():
        for path in (path for pattern in patterns for path in folder.glob(pattern)):
            if path not in found and (entry := _entry(kind, path)) is not None:
                found[path] = entry
    kinds = list(KINDS)
    return sorted(found.values(), key=lambda entry: (kinds.index(entry.kind), entry.used, entry.path))


def mark_used(path: Path) -> None:
    """Note that an entry of the cache folder is in use; other paths are left alone."""
    with suppress(OSError):
        if path.is_relative_to(cache_folder()):
            os.utime(path)


def trim(kept: Path, clock: Callable[[], float] = time.time) -> None:
    """Remove the least recently used entries until the limit holds, except `kept`. Errors are left to the next call."""
    with suppress(OSError):
        limited = sorted((entry for entry in entries() if entry.kind not in KEPT), key=lambda entry: entry.used)
        excess = sum(entry.size for entry in limited) - limit()
        for entry in limited:
            in_progress = entry.kind == "unfinished" and clock() - entry.used < DAY
            if excess > 0 and entry.path != kept and not in_progress and entry.remove():
                excess -= entry.size


def limit() -> int:
    """Bytes that the kinds outside `KEPT` may take: LADE_CACHE_SIZE, such as 500MB or 2GiB, else 2 GiB."""
    given = os.environ.get(LIMIT, "").strip().upper()
    if not given:
        return DEFAULT
    found = SIZE.fullmatch(given)
    if found is None or found[2] not in UNITS:
        warnings.warn(
            f"{LIMIT} in the environment must be a size such as 500MB or 2GiB, got {os.environ[LIMIT]!r}; "
            "taken as 2GiB, as if it were unset",
            EnvironmentWarning,
            stacklevel=2,
        )
        return DEFAULT
    return int(float(found[1]) * UNITS[found[2]])


def _entry(kind: str, path: Path) -> Entry | None:
    """`None` where the path is gone meanwhile."""
    try:
        status = path.stat()
        return Entry(kind, path, sum(_sizes(path)), status.st_mtime)
    except OSError:
        return None


def _sizes(path: Path) -> Iterator[int]:
    yield from (part.stat().st_size for part in (path.rglob("*") if path.is_dir() else [path]) if part.is_file())
