"""Files and folders that a command writes, checked before any work. Errors name the option."""

import os
from collections.abc import Sequence
from pathlib import Path


def check_suffix(option: str, path: Path, suffixes: Sequence[str]) -> None:
    if path.suffix not in suffixes:
        raise ValueError(f"{option} must end in {' or '.join(suffixes)}, got {path}")


def make_folder(option: str, folder: Path) -> None:
    """ValueError where the folder cannot be made or written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{option} must be a folder that can be made, got {folder} ({error.strerror})") from error
    if not os.access(folder, os.W_OK):
        raise ValueError(f"{option} must be a folder that can be written to, got {folder}")


def make_room(option: str, file: Path) -> None:
    """Make the file's folder; ValueError where the folder cannot be made or the file cannot be written."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{option} must be in a folder that can be made, got {file} ({error.strerror})") from error
    check_writable(option, file)


def check_writable(option: str, file: Path) -> None:
    """ValueError where there is something else than a file, such as a folder or a device, or its folder takes none."""
    if (file.exists() and not file.is_file()) or not os.access(_folder_of(file), os.W_OK):
        raise ValueError(f"{option} must be a file that can be written, got {file}")


def taken(option: str, path: Path) -> ValueError:
    return ValueError(f"{option} must be a new file, got {path}, which exists; --overwrite replaces it")


def check_folder_of(option: str, path: Path | None) -> None:
    """ValueError where the file's folder does not exist, or the file cannot be written. `None` passes."""
    if path is None:
        return
    if not _folder_of(path).is_dir():
        raise ValueError(f"{option} must be in a folder that exists, got {path}")
    check_writable(option, path)


def _folder_of(path: Path) -> Path:
    """Of what a link leads to; `Path.resolve` fails at a link to itself, which is replaced."""
    return Path(os.path.realpath(path)).parent
