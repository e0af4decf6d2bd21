"""`lade cache`: lists what lies in the cache folder, and removes it by kind.

Knows the terminal; the kinds and the limit are `lade.files.cachecontent`'s.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

import click
from rich.table import Table

from lade.applications.exits import Command, failing
from lade.applications.output import JSON, show
from lade.files.cachecontent import KEPT, KINDS, LIMIT, Entry, entries, limit
from lade.files.cachefolder import cache_folder
from lade.files.jsonobject import read_object
from lade.files.regularfile import MEBIBYTE, UnreadableFileError
from lade.models.pulled import MEGABYTE

REMADE = "remade"  # all kinds that lade makes again by itself
LIMITED = tuple(kind for kind in KINDS if kind not in KEPT)
CONFIGURATION = re.compile(r"warm(?:part|\d+)-([0-9a-f]+)")  # a file's name holds the hash of its model's configuration


@click.command("cache", cls=Command)
@click.option(
    "--clear",
    metavar="[KIND]",
    type=click.Choice([REMADE, "all", *KINDS]),
    is_flag=False,
    flag_value=REMADE,
    help=f"Remove one KIND ({', '.join(KINDS)}) or all; without KIND, all but {' and '.join(KEPT)}.",
)
@click.option("--yes", is_flag=True, help="Remove without asking.")
@JSON
def command(clear: str | None, yes: bool, as_json: bool) -> None:
    """List what lies in the cache folder: LADE_CACHE, else lade's folder of the user's cache.

    Models and presets stay until their kind is cleared by name. The other kinds together take at most LADE_CACHE_SIZE,
    such as 500MB (default: 2GiB); the least recently used files go first.
    """
    with failing(OSError):
        folder, found = cache_folder(), entries()
        names = model_names(found)
        doomed = [entry for entry in found if clear is not None and entry.kind in kinds_of(clear)]
        if doomed and not yes:
            confirm(f"Remove {summed(doomed)} ({', '.join(kinds(doomed))}) from {folder}?")
        removed = [entry for entry in doomed if entry.remove()]
    left = [entry for entry in found if entry not in removed]
    lines = [] if clear is None else [f"removed: {summed(removed)}"]
    show(
        *([table_of(left, names, folder)] if left else []),
        *lines,
        f"{folder}: {summed(left)}",
        f"{summed(limited(left))} of {in_megabytes(limit())} ({LIMIT}) without {' and '.join(KEPT)}",
        found={
            "folder": str(folder),
            "limit": limit(),
            "entries": [described(entry, names) for entry in left],
            "removed": [described(entry, names) for entry in removed],
        },
        as_json=as_json,
    )


def confirm(question: str) -> None:
    """Ask; the command ends where the answer is no, and where there is nobody to ask."""
    try:
        click.confirm(question, abort=True, err=True)
    except click.Abort as abort:
        click.echo(err=True)
        if isinstance(abort.__context__, EOFError):
            raise click.UsageError("--yes must be given with --clear where stdin has no answer") from abort
        if isinstance(abort.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from abort
        raise


def kinds_of(clear: str) -> Sequence[str]:
    return {REMADE: LIMITED, "all": tuple(KINDS)}.get(clear, (clear,))


def kinds(found: Iterable[Entry]) -> list[str]:
    return list(dict.fromkeys(entry.kind for entry in found))


def limited(found: Iterable[Entry]) -> list[Entry]:
    return [entry for entry in found if entry.kind in LIMITED]


def summed(found: Sequence[Entry]) -> str:
    count = "1 entry" if len(found) == 1 else f"{len(found)} entries"
    return f"{count}, {in_megabytes(sum(entry.size for entry in found))}"


def in_megabytes(size: int) -> str:
    return f"{size / MEGABYTE:,.1f} MB"


def described(entry: Entry, names: Mapping[Path, str]) -> dict[str, object]:
    return {
        "kind": entry.kind,
        "path": str(entry.path),
        "model": names.get(entry.path),
        "size": entry.size,
        "used": used(entry),
    }


def table_of(found: Sequence[Entry], names: Mapping[Path, str], folder: Path) -> Table:
    table = Table()
    for name in ("kind", "model", "size", "last used", "file"):
        table.add_column(name, justify="right" if name == "size" else "left", overflow="fold")
    for entry in found:
        size, file = in_megabytes(entry.size), str(entry.path.relative_to(folder))
        table.add_row(entry.kind, names.get(entry.path, ""), size, used(entry), file)
    return table


def used(entry: Entry) -> str:
    """The local time of the last use."""
    return datetime.fromtimestamp(entry.used).astimezone().isoformat(" ", "minutes")


def model_names(found: Sequence[Entry]) -> dict[Path, str]:
    """The models of the entries, where their files tell; another table of the configuration may tell for one."""
    told = {entry.path: name for entry in found if (name := model_name(entry))}
    keys = {key[1]: name for path, name in told.items() if (key := CONFIGURATION.match(path.name))}
    alike = {
        entry.path: keys[key[1]] for entry in found if (key := CONFIGURATION.match(entry.path.name)) and key[1] in keys
    }
    return alike | told


def model_name(entry: Entry) -> str:
    """The name of the entry's model, as it was loaded; empty where the entry does not hold it."""
    if entry.kind == "models":
        return entry.path.name
    if entry.kind == "tables":
        return Path(metadata_of(entry.path).get("model", "")).name
    if entry.kind == "presets" and entry.path.suffix == ".json":
        try:
            return Path(str(read_object(entry.path, MEBIBYTE, entry.path).get("model", ""))).name
        except UnreadableFileError:
            return ""
    return ""


def metadata_of(path: Path) -> dict[str, str]:
    """The metadata of a safetensors file; empty where there is none."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():  # a pipe would block
        return {}
    try:
        with safe_open(path, "numpy") as file:
            return file.metadata() or {}
    except (OSError, SafetensorError):
        return {}
