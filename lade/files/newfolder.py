"""Folders that appear whole or not at all, and the room on the disk for them."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MEGABYTE = 10**6
UNFINISHED = ".lade-*.tmp"  # names of temporary folders


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yields a temporary folder beside `path`, which becomes `path` at the end of the block. An error removes it.

    Where another process has made `path` meanwhile, its folder stays and this one is removed.
    """
    temporary = path.with_name(f".lade-{os.getpid()}-{uuid.uuid4().hex}.tmp")
    temporary.mkdir(parents=True)
    try:
        yield temporary
        for file in temporary.rglob("*"):
            if file.is_file():
                _sync(file)
        try:
            temporary.rename(path)
        except OSError:
            if not path.is_dir():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_space(folder: Path, needed: int) -> None:
    """OSError where the disk of a folder, which need not exist yet, has fewer free bytes than `needed`."""
    there = next(parent for parent in (folder, *folder.absolute().parents) if parent.is_dir())
    free = shutil.disk_usage(there).free
    if free < needed:
        raise OSError(
            f"{folder} must have {needed / MEGABYTE:.0f} MB free, got {free / MEGABYTE:.0f} MB; "
            "`lade cache` shows what lies there, and LADE_CACHE can name another folder"
        )


def _sync(file: Path) -> None:
    with file.open("rb+") as opened:
        os.fsync(opened.fileno())
