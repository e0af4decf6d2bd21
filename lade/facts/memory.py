"""The memory of this machine, in bytes. Knows no model."""

from __future__ import annotations

from pathlib import Path

LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))  # of a container


def total() -> int:
    """All memory, or a container's limit."""
    import psutil

    return min([int(psutil.virtual_memory().total), *filter(None, map(_limit, LIMITS))])


def available() -> int:
    """What programs can take without swapping; a container's limit counts as a whole."""
    import psutil

    return min(int(psutil.virtual_memory().available), total())


def _limit(path: Path) -> int | None:
    """`None` where there is none."""
    try:
        told = path.read_text().strip()
    except OSError:
        return None
    return int(told) if told.isdecimal() else None
