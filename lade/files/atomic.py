"""Atomic writes: a reader gets the old file or the new one, and a failure leaves nothing behind."""

from __future__ import annotations

import errno
import os
import time
import uuid
from contextlib import suppress
from pathlib import Path

# Windows does not replace a file that is being read; lade reads a file at once, so waiting a little helps.
ATTEMPTS, PAUSE = (50 if os.name == "nt" else 1), 0.02


def put_in_place(path: Path, content: bytes) -> None:
    """Write this content atomically; the folder must exist. Several processes may write the same file.

    Where `path` is a link, what it leads to is written.

    Raises:
        OSError: of `path`, not of the temporary file; also where it is a device, a pipe or a socket.
    """
    place = Path(os.path.realpath(path))
    if place.exists() and not place.is_file() and not place.is_dir():  # a folder is refused when it is replaced
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    temporary = place.with_name(f".lade-{os.getpid()}-{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        _replace(temporary, place)
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        with suppress(OSError):  # the first error matters
            temporary.unlink(missing_ok=True)


def _replace(temporary: Path, path: Path) -> None:
    for _ in range(ATTEMPTS - 1):
        try:
            temporary.replace(path)
            return
        except PermissionError:
            time.sleep(PAUSE)
    temporary.replace(path)
