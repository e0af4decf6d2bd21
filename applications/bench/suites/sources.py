"""Sources of a suite's rows, tried in order: files in this package, then optional local data.

The local data is the folder LADE_DATA, else a folder `shared` beside the repository; a suite's files are in its
`data/SUITE/`. Knows no suite.
"""

import gzip
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol

from lade.applications.bench.prompts import Prompt
from lade.applications.bench.suites.suite import SuiteError
from lade.base.shown import shown
from lade.files.jsonobject import json_value
from lade.files.regularfile import MEBIBYTE, as_text, naming, read_bytes

DataRow = dict[str, Any]
MakePrompt = Callable[[int, DataRow], Prompt]  # (index of the row, row)

MAX_BYTES = 512 * MEBIBYTE  # compressed, and uncompressed
SHIPPED = Path(__file__).parent / "data"


class AbsentError(Exception):
    """A source without rows; the message names the place."""


class RowSource(Protocol):
    """A place that may have rows, and the conversion of a row to a prompt."""

    @property
    def name(self) -> str: ...

    @property
    def prompt(self) -> MakePrompt: ...

    @property
    def hint(self) -> str:
        """How to provide the rows; empty if that is not possible."""

    def rows(self) -> list[DataRow]:
        """AbsentError if there are none; ValueError if they cannot be read."""


@dataclass(frozen=True)
class Shipped:
    """A file inside this package."""

    file: str
    prompt: MakePrompt
    hint: str = ""

    @property
    def name(self) -> str:
        return self.file

    def rows(self) -> list[DataRow]:
        return read_rows(SHIPPED / self.file)


@dataclass(frozen=True)
class Local:
    """A file of the local data, and its origin."""

    file: str
    prompt: MakePrompt
    origin: str = ""

    @property
    def name(self) -> str:
        return f"data/{self.file}"

    @property
    def hint(self) -> str:
        return f"set LADE_DATA to a folder that holds {self.name}" + (f" ({self.origin})" if self.origin else "")

    def rows(self) -> list[DataRow]:
        return read_rows(local_data() / "data" / self.file)


def load(suite: str, *sources: RowSource) -> list[Prompt]:
    """The prompts of the first source that has rows. SuiteError if none has, or if the rows are invalid."""
    missing = []
    for source in sources:
        try:
            return [_prompt(source, number, row) for number, row in enumerate(source.rows())]
        except AbsentError as absent:
            missing.append(str(absent))
        except ValueError as error:
            raise SuiteError(f"{suite}: {error}") from error
    ways = [*filter(None, (source.hint for source in sources)), "give a file of prompts with --prompts"]
    raise SuiteError(f"{suite}: no prompts: {'; '.join(missing)}. To provide them, {', or '.join(ways)}")


def local_data() -> Path:
    """AbsentError where there is none, or LADE_DATA begins with the home folder of a user who does not exist."""
    named, beside = os.environ.get("LADE_DATA"), Path(__file__).resolve().parents[4] / "shared"
    if not named:
        if not beside.is_dir():
            raise AbsentError("there is no local data")
        return beside
    try:
        return Path(named).expanduser()
    except RuntimeError as error:
        raise AbsentError(f"LADE_DATA must be a folder, got {shown(named)} ({error})") from error


def read_rows(path: Path) -> list[DataRow]:
    """Rows of JSON lines, or of one JSON list whose texts become `{"prompt": text}`; `.gz` files are decompressed.

    AbsentError if the file does not exist; ValueError with file and line if it is invalid.
    """
    if not path.is_file():
        raise AbsentError(f"there is no {path}")
    with naming(path):
        text = as_text(_unpacked(read_bytes(path, MAX_BYTES), path.suffix))
    if path.suffix == ".json":
        return [_row(item, f"{path}, item {number}") for number, item in enumerate(_list(text, path))]
    lines = text.split("\n")  # not splitlines: a JSON string may hold U+2028
    return [_row(json_value(line, f"{path}:{n}"), f"{path}:{n}") for n, line in enumerate(lines, 1) if line.strip()]


def _unpacked(content: bytes, suffix: str) -> bytes:
    """ValueError for an invalid file, or one over `MAX_BYTES` when uncompressed."""
    if suffix != ".gz":
        return content
    try:
        with gzip.GzipFile(fileobj=BytesIO(content)) as file:
            unpacked = file.read(MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"cannot be read ({error})") from error
    if len(unpacked) > MAX_BYTES:
        raise ValueError(f"cannot be read (its uncompressed size must be at most {MAX_BYTES:,} bytes)")
    return unpacked


def _list(text: str, path: Path) -> list[Any]:
    found = json_value(text, path)
    if not isinstance(found, list):
        raise ValueError(f"{path}: must be a JSON list, got {type(found).__name__}")
    return found


def _row(item: object, where: str) -> DataRow:
    if isinstance(item, str):
        return {"prompt": item}
    if not isinstance(item, dict):
        raise ValueError(f"{where} must be an object or a text, got {type(item).__name__}")
    return item


def _prompt(source: RowSource, number: int, row: DataRow) -> Prompt:
    try:
        return source.prompt(number, row)
    except KeyError as error:
        raise ValueError(f"{source.name}: row {number + 1} has no {error}") from error
    except (AttributeError, IndexError, TypeError) as error:
        raise ValueError(f"{source.name}: row {number + 1} has an unexpected form ({error})") from error
