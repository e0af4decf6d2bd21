"""Where lade keeps what it may lose: the user's cache folder."""

from __future__ import annotations

import os
from pathlib import Path


class CacheWarning(UserWarning):
    """A file in the cache folder is ignored, or a table could not be kept there; the message says why."""


def cache_folder() -> Path:
    """LADE_CACHE, else lade in XDG_CACHE_HOME, else ~/.cache/lade; not made here.

    Raises:
        OSError: the user has no home folder, and the environment names no other.
    """
    own, shared = os.environ.get("LADE_CACHE"), os.environ.get("XDG_CACHE_HOME")
    try:
        return Path(own).expanduser() if own else (Path(shared) if shared else Path.home() / ".cache") / "lade"
    except RuntimeError as error:
        raise OSError(f"{error}; LADE_CACHE can name the folder for caches") from error
