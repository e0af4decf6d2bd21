"""Shows Markdown block by block: a block is shown once an empty line or the text's end ends it. Knows no model."""

from __future__ import annotations

from typing import TextIO

FENCES = ("```", "~~~")


class MarkdownWriter:
    """Collects text and prints whole blocks of it as Markdown.

    Args:
        file: where to print.
        width: columns; `None` for the terminal's.
    """

    def __init__(self, file: TextIO, width: int | None = None) -> None:
        from rich.console import Console

        self._console = Console(file=file, width=width)
        self._text = ""

    def write(self, text: str) -> None:
        """Take a piece, and print the blocks that it ends."""
        self._text += text
        end = _whole(self._text)
        if end:
            self._print(self._text[:end])
            self._text = self._text[end:]

    def end(self) -> None:
        """Print what is left."""
        self._print(self._text)
        self._text = ""

    def _print(self, text: str) -> None:
        from rich.markdown import Markdown

        if text.strip():
            self._console.print(Markdown(text))
            self._console.print()


def _whole(text: str) -> int:
    """Characters up to the last empty line outside of a code fence."""
    found = at = 0
    fence = ""
    for line in text.splitlines(keepends=True):
        at += len(line)
        mark = line.strip()[:3]
        if fence:
            fence = "" if mark == fence and line.endswith("\n") else fence
        elif mark in FENCES:
            fence = mark
        elif line == "\n":
            found = at
    return found
