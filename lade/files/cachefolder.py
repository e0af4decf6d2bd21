"""The folder for warm tables, costs of steps, presets and pulled models."""

from __future__ import annotations

import os
from pathlib import Path


class CacheWarning(UserWarning):
    """A file in the cache folder is ignored, or nothing is kept there; the message says why."""


class NotKeptWarning(CacheWarning):
    """The cache folder takes no file of a computation, which goes on; the message says why."""


class NoCacheFolderError(OSError):
    """The user has no home folder, and the environment names no other; the message says what to set."""


def cache_folder() -> Path:
    """LADE_CACHE, else the platform's cache folder for lade (on Linux ~/.cache/lade); it may not exist.

    Raises:
        NoCacheFolderError: there is none.
    """
    from platformdirs import user_cache_path

    own = os.environ.get("LADE_CACHE")
    try:
        return Path(own).expanduser() if own else user_cache_path("lade", appauthor=False)
    except RuntimeError as error:
        raise NoCacheFolderError(f"{error}; LADE_CACHE can name the folder for caches") from error


def writable_cache_folder() -> Path:
    """The cache folder, made if it does not exist.

    Raises:
        OSError: it cannot be made or written to.
    """
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"{folder} cannot be made ({error.strerror}); set LADE_CACHE to another folder") from error
    if not os.access(folder, os.W_OK):
        raise OSError(f"{folder}: cannot be written; set LADE_CACHE to another folder")
    return folder
