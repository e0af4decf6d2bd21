"""Writing a file in one step: whoever reads meanwhile gets the old one, and a failure leaves nothing behind."""

from __future__ import annotations

import os
import time
import uuid
from contextlib import suppress
from pathlib import Path

# Windows refuses to replace a file that somebody is reading: what lade reads is read at once, so that soon ends.
ATTEMPTS, PAUSE = (50 if os.name == "nt" else 1), 0.02


def put_in_place(path: Path, content: bytes) -> None:
    """Give a file this content, at once or not at all; its folder must be there. Several processes may do it."""
    temporary = path.with_name(f".lade-{os.getpid()}-{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        _replace(temporary, path)
    finally:
        with suppress(OSError):  # the error that matters is the first one
            temporary.unlink(missing_ok=True)


def _replace(temporary: Path, path: Path) -> None:
    for _ in range(ATTEMPTS - 1):
        try:
            temporary.replace(path)
            return
        except PermissionError:
            time.sleep(PAUSE)
    temporary.replace(path)
