"""Reads files that anybody may have made: regular files of bounded size, whole, without blocking.

Follows links, as users keep caches and data behind them; the target must be a regular file. Knows nothing of the
content.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MEBIBYTE = 1 << 20
# Where the system has them: do not wait for a FIFO's writer, take no controlling terminal, translate no line ends.
FLAGS = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY"))


class UnreadableFileError(OSError, ValueError):
    """A file cannot be read, or its content is not what is expected; the message says why."""


class AbsentFileError(UnreadableFileError, FileNotFoundError):
    """There is no such file."""


def read_bytes(path: Path, most: int) -> bytes:
    """The file's content, at most `most` bytes.

    Raises:
        AbsentFileError: there is none.
        UnreadableFileError: it is no regular file, larger, or cannot be read.
    """
    with _unreadable():
        _check(path.stat(), most)  # before it is opened: opening a device may have effects
        with os.fdopen(os.open(path, FLAGS), "rb") as file:
            _check(os.fstat(file.fileno()), most)
            content = file.read(most + 1)  # it may grow meanwhile
        _check_size(len(content), most)
        return content


def read_text(path: Path, most: int) -> str:
    """The file's content as UTF-8 text; errors as in `read_bytes`."""
    return as_text(read_bytes(path, most))


def as_text(content: bytes) -> str:
    """UTF-8, with or without a byte order mark, which editors and shells of Windows write."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableFileError(f"is not UTF-8 text ({error})") from error


@contextmanager
def naming(where: object) -> Iterator[None]:
    """Errors about a file's content, raised inside, begin with `where` and are `UnreadableFileError`s."""
    try:
        yield
    except ValueError as error:
        kind = AbsentFileError if isinstance(error, AbsentFileError) else UnreadableFileError
        raise kind(f"{where}: {error}") from error


@contextmanager
def _unreadable() -> Iterator[None]:
    """Errors of the system, raised inside, become `UnreadableFileError`s."""
    try:
        yield
    except UnreadableFileError:
        raise
    except (FileNotFoundError, NotADirectoryError) as error:
        raise AbsentFileError(f"cannot be read ({error.strerror})") from error
    except OSError as error:
        raise UnreadableFileError(f"cannot be read ({error.strerror or error})") from error
    except (ValueError, MemoryError) as error:  # a path with a null character; too little memory
        raise UnreadableFileError(f"cannot be read ({str(error) or 'too little memory'})") from error


def _check(found: os.stat_result, most: int) -> None:
    if not stat.S_ISREG(found.st_mode):
        what = "a directory" if stat.S_ISDIR(found.st_mode) else "a pipe, a device or a socket"
        raise UnreadableFileError(f"cannot be read ({what}, not a regular file)")
    _check_size(found.st_size, most)


def _check_size(size: int, most: int) -> None:
    if size > most:
        raise UnreadableFileError(f"cannot be read (its size must be at most {most:,} bytes, got {size:,} or more)")
