"""How every command ends: 0 done, 1 failed while it ran, 2 used wrongly, 130 interrupted. Knows no command."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from lade.base import environment

INTERRUPTED = 130  # what shells say of a command that Ctrl-C ended
AGAIN = "run the same command again"


@contextmanager
def interruptible(kept: Callable[[], str] = lambda: AGAIN) -> Iterator[None]:
    """Ctrl-C inside ends the command with one line, which says what is kept and how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo(f"\ninterrupted; {kept()}", err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None


class _Interruptible(click.Command):
    """Where click alone would say "Aborted!" and end with 1, as if something had failed."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with interruptible():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with interruptible():
            return super().invoke(ctx)


class Command(_Interruptible):
    """A command that is started by itself."""


class Group(_Interruptible, click.Group):
    """Commands that are started through it."""


@contextmanager
def usage(option: str | None = None, *kinds: type[Exception]) -> Iterator[None]:
    """What is found wrong inside is the user's to change: status 2.

    Args:
        option: whose value it is, where the error's own text does not name it.
        kinds: of errors; default: OSError and ValueError.
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
    """What goes wrong inside is told in one line, without a traceback: status 1."""
    errors = kinds or (OSError, ValueError)
    try:
        yield
    except errors as error:
        raise click.ClickException(str(error)) from error


def switch(name: str) -> bool:
    """A switch in the environment, off where it is not set; status 2 for a value that says neither."""
    with usage():
        return environment.switch(name, default=False)
