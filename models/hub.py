"""Whether a model of the hub is to be had, asked once: the hub's own client tries for half a minute before it gives up.

Knows the hub's client, which it imports when it is asked; loads no model.
"""

from __future__ import annotations

from pathlib import Path


def on_hand(name: str, cache_dir: str | Path | None = None) -> str:
    """The name, where the hub answers; where it does not, the folder in which its cache keeps that model.

    Raises:
        OSError: neither has it; names the model.
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
    """Where earlier downloads lie; None where there are none."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, "config.json", cache_dir=cache_dir)
    return Path(found).parent if isinstance(found, str) else None


def ask() -> None:
    """Ask the hub for anything, through its own client with whatever that was set up with; any answer counts.

    It may take half of HF_HUB_ETAG_TIMEOUT, which is what the client itself waits for each file.

    Raises:
        OSError: why the hub cannot be asked now.
    """
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        raise OSError("HF_HUB_OFFLINE is set")
    try:
        get_session().head(constants.ENDPOINT, timeout=constants.HF_HUB_ETAG_TIMEOUT / 2)
    except Exception as error:  # of a transport that differs from version to version
        raise OSError(f"{constants.ENDPOINT} does not answer ({type(error).__name__}: {error})") from error
