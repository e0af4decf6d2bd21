"""Exit statuses of commands: 0 done, 1 failed while running, 2 wrong usage, 130 interrupted. Knows no command."""

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import click

from lade.applications.process import program
from lade.base import environment
from lade.files.cachefolder import NoCacheFolderError

INTERRUPTED = 130  # the shells' status after SIGINT
STREAMS = {"stdin": "r", "stdout": "w", "stderr": "w"}
AGAIN = "run the same command again"


@contextmanager
def interruptible(kept: Callable[[], str] = lambda: AGAIN) -> Iterator[None]:
    """Ctrl-C inside ends the command with one line: what is kept and how to continue."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo(f"\ninterrupted; {kept()}", err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None


@contextmanager
def place_for_files() -> Iterator[None]:
    """A full disk, behind stdout too, and a user without a folder for caches end the command with one line."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOSPC and not isinstance(error, NoCacheFolderError):
            raise
        raise click.ClickException(str(error)) from error


class _Interruptible(click.Command):
    """Ends with 130 on Ctrl-C; click alone prints "Aborted!" and ends with 1."""

    def main(self, args: Any = None, *rest: Any, **kwargs: Any) -> Any:
        """Without arguments they are the process's: the command is its program."""
        with program() if args is None else nullcontext():
            return super().main(args, *rest, **kwargs)

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with interruptible(), place_for_files():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with interruptible(), place_for_files():
            return super().invoke(ctx)


class Command(_Interruptible):
    """A single command."""


class Group(_Interruptible, click.Group):
    """A group of commands."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Where the caller closed a standard stream, what is written is lost, and there is nothing to read."""
        for name, mode in STREAMS.items():
            if getattr(sys, name) is None:
                setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - until the process ends
        return super().main(*args, **kwargs)


@contextmanager
def usage(option: str | None = None, *kinds: type[Exception]) -> Iterator[None]:
    """Errors inside are errors of usage: status 2.

    Args:
        option: the option to name, if the error does not.
        kinds: types of errors; default: OSError and ValueError.
    """
    errors = kinds or (OSError, ValueError)
    try:
        yield
    except errors as error:
        if option is None:
            raise click.UsageError(str(error)) from error
        raise click.BadParameter(str(error), param_hint=f"'{option}'") from error


@contextmanager
def failing(*kinds: type[Exception]) -> Iterator[None]:
    """Errors inside end the command with one line and no traceback: status 1."""
    errors = kinds or (OSError, ValueError)
    try:
        yield
    except errors as error:
        raise click.ClickException(str(error)) from error


def switch(name: str) -> bool:
    """A switch in the environment, off by default; status 2 for an invalid value."""
    with usage():
        return environment.switch(name, default=False)
