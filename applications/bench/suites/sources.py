"""Where a suite's rows may lie, tried in order: files that ship with this package, then the optional local data.

The local data is the folder named by LADE_DATA, else a folder `shared` beside the repository; a suite's files stand in
`data/SUITE/` in there. Knows no suite.
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

Row = dict[str, Any]
MakePrompt = Callable[[int, Row], Prompt]  # (place among the rows, row)

MOST = 512 * MEBIBYTE  # of a file, unpacked too
SHIPPED = Path(__file__).parent / "data"


class AbsentError(Exception):
    """A source has nothing here; the message says where it looked."""


class Source(Protocol):
    """A place where rows may be found, and what a row means."""

    @property
    def name(self) -> str: ...

    @property
    def prompt(self) -> MakePrompt: ...

    @property
    def hint(self) -> str:
        """How to make the source have them; empty where nobody can."""

    def rows(self) -> list[Row]:
        """AbsentError where it has none; ValueError where it has them but they cannot be read."""


@dataclass(frozen=True)
class Shipped:
    """A file inside this package."""

    file: str
    prompt: MakePrompt
    hint: str = ""

    @property
    def name(self) -> str:
        return self.file

    def rows(self) -> list[Row]:
        return read_rows(SHIPPED / self.file)


@dataclass(frozen=True)
class Local:
    """A file of the local data, and where somebody may get it from."""

    file: str
    prompt: MakePrompt
    origin: str = ""

    @property
    def name(self) -> str:
        return f"data/{self.file}"

    @property
    def hint(self) -> str:
        return f"set LADE_DATA to a folder that holds {self.name}" + (f" ({self.origin})" if self.origin else "")

    def rows(self) -> list[Row]:
        return read_rows(local_data() / "data" / self.file)


def load(suite: str, *sources: Source) -> list[Prompt]:
    """The prompts of the first source that has them. SuiteError where none has, or the one that has is broken."""
    missing = []
    for source in sources:
        try:
            return [_prompt(source, number, row) for number, row in enumerate(source.rows())]
        except AbsentError as absent:
            missing.append(str(absent))
        except ValueError as error:
            raise SuiteError(f"{suite}: {error}") from error
    ways = [*filter(None, (source.hint for source in sources)), "give a file of prompts with --prompts"]
    raise SuiteError(f"{suite}: no prompts: {'; '.join(missing)}. To have them, {', or '.join(ways)}")


def local_data() -> Path:
    """AbsentError where LADE_DATA begins with the home folder of a user who does not exist."""
    named = os.environ.get("LADE_DATA")
    if not named:
        return Path(__file__).resolve().parents[4] / "shared"
    try:
        return Path(named).expanduser()
    except RuntimeError as error:
        raise AbsentError(f"LADE_DATA must be a folder, got {shown(named)} ({error})") from error


def read_rows(path: Path) -> list[Row]:
    """Of JSON lines, or of one JSON list whose texts become `{"prompt": text}`; compressed where the name says so.

    AbsentError where there is no such file; ValueError, which names file and line, where it is broken.
    """
    if not path.is_file():
        raise AbsentError(f"there is no {path}")
    with naming(path):
        text = as_text(_unpacked(read_bytes(path, MOST), path.suffix))
    if path.suffix == ".json":
        return [_row(item, f"{path}, item {number}") for number, item in enumerate(_list(text, path))]
    lines = text.split("\n")  # not splitlines: a JSON string may hold U+2028
    return [_row(json_value(line, f"{path}:{n}"), f"{path}:{n}") for n, line in enumerate(lines, 1) if line.strip()]


def _unpacked(content: bytes, suffix: str) -> bytes:
    """ValueError where it is broken, or larger than a file may be once it is unpacked."""
    if suffix != ".gz":
        return content
    try:
        with gzip.GzipFile(fileobj=BytesIO(content)) as file:
            unpacked = file.read(MOST + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"cannot be read ({error})") from error
    if len(unpacked) > MOST:
        raise ValueError(f"cannot be read (unpacked, its size must be at most {MOST:,} bytes)")
    return unpacked


def _list(text: str, path: Path) -> list[Any]:
    found = json_value(text, path)
    if not isinstance(found, list):
        raise ValueError(f"{path}: a JSON list is needed, not {type(found).__name__}")
    return found


def _row(item: object, where: str) -> Row:
    if isinstance(item, str):
        return {"prompt": item}
    if not isinstance(item, dict):
        raise ValueError(f"{where} holds neither an object nor a text but {type(item).__name__}")
    return item


def _prompt(source: Source, number: int, row: Row) -> Prompt:
    try:
        return source.prompt(number, row)
    except KeyError as error:
        raise ValueError(f"{source.name}: row {number + 1} has no {error}") from error
    except (AttributeError, IndexError, TypeError) as error:
        raise ValueError(f"{source.name}: row {number + 1} is not as expected ({error})") from error
