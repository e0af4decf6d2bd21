"""Asks the hub once whether it answers, as the hub's own client retries for half a minute before it fails.

Imports the hub's client on first use; loads no model.
"""

from __future__ import annotations

from pathlib import Path


def on_hand(name: str, cache_dir: str | Path | None = None) -> str:
    """The name if the hub answers, else the model's folder in the hub's cache.

    Raises:
        OSError: the hub does not answer and the cache does not have the model.
    """
    try:
        ask()
    except OSError as silence:
        folder = cached(name, cache_dir)
        if folder is None:
            raise OSError(
                f"path_or_name must be a folder, a model that ships or one that the hub gives, got {name!r}: "
                f"no folder has this name, the hub's cache does not hold it, and {silence}"
            ) from silence
        return str(folder)
    return name


def cached(name: str, cache_dir: str | Path | None = None) -> Path | None:
    """The folder of an earlier download, or `None`."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, "config.json", cache_dir=cache_dir)
    return Path(found).parent if isinstance(found, str) else None


def ask() -> None:
    """Check that the hub answers at all, with its own client and that client's settings.

    The timeout is half of HF_HUB_ETAG_TIMEOUT, which is what the client itself waits per file.

    Raises:
        OSError: the hub does not answer, or HF_HUB_OFFLINE is set.
    """
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        raise OSError("HF_HUB_OFFLINE is set")
    try:
        get_session().head(constants.ENDPOINT, timeout=constants.HF_HUB_ETAG_TIMEOUT / 2)
    except Exception as error:  # the transport and its errors differ between versions
        raise OSError(f"{constants.ENDPOINT} does not answer ({type(error).__name__}: {error})") from error
