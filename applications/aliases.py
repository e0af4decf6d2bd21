"""Options with hidden older spellings, so that one setting has one name in all commands."""

from collections.abc import Callable, Sequence
from typing import Any

import click


class AliasedOption(click.Option):
    """An option with hidden spellings.

    Args:
        aliases: as they stand on a command line, such as `--window`.
    """

    def __init__(self, *args: Any, aliases: Sequence[str] = (), **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.aliases = list(aliases)

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        shown = self.opts
        self.opts = [*shown, *self.aliases]
        try:
            super().add_to_parser(parser, ctx)
        finally:
            self.opts = shown


def renamed(option: str, *aliases: str, name: str | None = None, **attributes: Any) -> Callable[..., Any]:
    """A decorator for an option with older spellings; `name`: the parameter's, if it differs from the option's."""
    return click.option(option, *filter(None, [name]), cls=AliasedOption, aliases=aliases, **attributes)
