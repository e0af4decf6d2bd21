"""Processes that run a script with the lade of a checkout, and answer JSON lines with JSON lines."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).resolve().parents[1]


class Worker:
    """Such a process.

    Args:
        script: its name in this folder.
        checkout: a folder from which `import lade` takes what it is to run.
        arguments: of the script.
    """

    def __init__(self, script: str, checkout: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "benchmarks" / script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(checkout)},
            text=True,
        )

    def ask(self, **job: Any) -> Any:
        """The answer to a job.

        Raises:
            click.ClickException: the process has ended.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(job) + "\n")
            self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise click.ClickException("a process has ended; its message stands above")
        return json.loads(answer)


@contextlib.contextmanager
def worker(script: str, checkout: Path, *arguments: str) -> Iterator[Worker]:
    """One that ends with the block."""
    found = Worker(script, checkout, *arguments)
    try:
        yield found
    finally:
        found.process.kill()
        found.process.communicate()


@contextlib.contextmanager
def importable(checkout: Path) -> Iterator[Path]:
    """A folder from which `import lade` takes the code of a checkout up to 0.1, which lies in three folders."""
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "lade"
        package.mkdir()
        for part in (*(checkout / "lade").iterdir(), checkout / "models", checkout / "applications"):
            (package / part.name).unlink(missing_ok=True)
            (package / part.name).symlink_to(part)
        yield Path(folder)
