"""A program in a pseudo-terminal: types, waits for what it shows, and sends Ctrl-C as a terminal does."""

from __future__ import annotations

import os
import re
import select
import signal
import struct
import sys
import time
from collections.abc import Sequence
from types import TracebackType

PATIENCE = 60.0  # seconds until a program counts as hanging
ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07]*\x07|[@-Z\\^_=>])|\r|\x1b(\[[0-?]*[ -/]*)?$")
PASTE = "\x1b[200~{}\x1b[201~"  # bracketed
CTRL_C, CTRL_D, UP = "\x03", "\x04", "\x1b[A"
SIZE = 50, 120  # lines, columns


class Terminal:
    """Runs a Python program until the end of the scope.

    Attributes:
        shown: all that it wrote, without escape sequences.
    """

    def __init__(self, arguments: Sequence[str], program: str = sys.executable, **environment: str) -> None:
        import fcntl  # here: not every system has them
        import pty
        import termios

        self.shown, self._raw, self._at = "", b"", 0
        self._child, self._master = pty.fork()
        if self._child == 0:
            known = {"TERM": "xterm-256color", "PROMPT_TOOLKIT_NO_CPR": "1", "PYTHONFAULTHANDLER": "1"}
            environment = known | environment
            os.execve(program, [program, *arguments], dict(os.environ) | environment)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", *SIZE, 0, 0))

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._master)
        if self._child:
            os.kill(self._child, signal.SIGKILL)
            os.waitpid(self._child, 0)

    def type(self, text: str) -> None:
        """Send keys."""
        os.write(self._master, text.encode())

    def send(self, line: str) -> None:
        """Send a line and Enter."""
        self.type(f"{line}\r")

    def paste(self, text: str) -> None:
        """Paste as a terminal does that brackets pastes."""
        left = PASTE.format(text.replace("\n", "\r")).encode()
        while left:  # the terminal takes some kilobytes at a time
            left = left[os.write(self._master, left[:512]) :]
            self._take(0.0)

    def until(self, pattern: str, patience: float = PATIENCE) -> re.Match[str]:
        """Wait until the program shows what fits, behind the last such place. One that hangs tells where, and ends."""
        deadline = time.monotonic() + patience
        while (found := re.search(pattern, self.shown[self._at :])) is None:
            assert time.monotonic() < deadline, f"no {pattern!r} in {self.shown[self._at :]!r}\n{self._stacks()}"
            assert self._take(1.0), f"it ended without {pattern!r}: {self.shown[self._at :]!r}"
        self._at += found.end()
        return found

    def ended(self) -> int:
        """Wait for the end. Returns the exit status."""
        while self._take(PATIENCE):
            pass
        status = os.waitpid(self._child, 0)[1]
        self._child = 0
        return os.waitstatus_to_exitcode(status)

    def _stacks(self) -> str:
        """What each thread does: Python prints that when it is told to abort."""
        shown = len(self.shown)
        os.kill(self._child, signal.SIGABRT)
        for _ in range(int(PATIENCE)):
            if not self._take(1.0):
                break
        return self.shown[shown:]

    def _take(self, seconds: float) -> bool:
        """Read what there is; false at the end."""
        if not select.select([self._master], [], [], seconds)[0]:
            return True
        try:
            found = os.read(self._master, 1 << 16)
        except OSError:  # on Linux, once the program has closed it
            return False
        self._raw += found
        self.shown = ESCAPES.sub("", self._raw.decode(errors="replace"))
        return bool(found)
