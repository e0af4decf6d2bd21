"""The `lade` command: a group that imports a command's module when the command runs.

Knows each command's module and its one-line help.
"""

from importlib import import_module

import click

from lade.applications.exits import Group
from lade.base.version import VERSION

COMMANDS = {  # name: (module that holds it as `command`, what it does)
    "bench": ("lade.applications.bench.command", "Compare decoding methods with plain decoding."),
    "bench-diff": ("lade.applications.bench_diff", "Compare two runs of a bench, prompt by prompt."),
    "bench-report": ("lade.applications.bench_report", "Make a bench's report again, or a leaderboard of several."),
    "cache": ("lade.applications.cache", "List and clear the cache folder."),
    "chat": ("lade.applications.chat.command", "Chat with a model in the terminal."),
    "corpus": ("lade.applications.corpus", "Make a corpus to draft from of text files."),
    "demo": ("lade.applications.demo.command", "Plain decoding and lade side by side."),
    "likelihood": (
        "lade.applications.likelihood_command",
        "Compare texts and cost of a model, a draft model and both.",
    ),
    "pull": ("lade.applications.pull", "Fetch a real model and convert it, once."),
    "serve": ("lade.applications.serve.command", "Serve a model over HTTP in OpenAI's format."),
    "skip-search": ("lade.applications.skip_search", "Find the sub-layers to skip for self-speculative drafts."),
    "tune": ("lade.applications.tune", "Find the fastest fixed settings for a model and prompts."),
    "warm": ("lade.applications.warm", "Compute a model's warm table and store it."),
    "widen": ("lade.applications.widen", "Widen a small trained model to a larger shape."),
}


class LazyGroup(Group):
    """Lists the commands from the table, so that `lade --help` loads no model library."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        found: click.Command = import_module(COMMANDS[cmd_name][0]).command
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])


@click.group(cls=LazyGroup)
@click.version_option(VERSION, prog_name="lade")
def main() -> None:
    """Lookahead decoding for Hugging Face causal language models: the same text in fewer forward passes."""
