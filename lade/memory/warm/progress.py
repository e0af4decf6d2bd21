"""A progress bar on stderr, if that is a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import Progress as Bar

if TYPE_CHECKING:
    from lade.memory.warm.table import Progress


@contextmanager
def progress_bar(what: str) -> Iterator[Progress]:
    """Yields a function of how much is done and of how much, which moves the bar; the bar is removed at the end."""
    console = Console(stderr=True)
    with Bar(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
