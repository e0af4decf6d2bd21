"""The `lade` command: a group that imports a command's file only when that command runs.

Knows where each command is and one line about it; knows no more.
"""

from importlib import import_module

import click

from lade.applications.exits import Group

COMMANDS = {  # name: (module that holds it as `command`, what it does)
    "bench": ("lade.applications.bench.command", "Measure ways of decoding side by side."),
    "bench-diff": ("lade.applications.bench_diff", "Compare two runs of a bench, prompt by prompt."),
    "bench-report": ("lade.applications.bench_report", "Make the report of a bench anew from its files."),
    "chat": ("lade.applications.chat", "Chat with a model."),
    "likelihood": ("lade.applications.likelihood_command", "How likely a model finds what a draft model writes."),
    "skip-search": ("lade.applications.skip_search", "Find what a model leaves out to draft for itself."),
    "tune": ("lade.applications.tune", "Find the fastest fixed settings for a model on your prompts."),
    "warm": ("lade.applications.warm", "Compute a model's warm table once and keep it."),
    "widen": ("lade.applications.widen", "Widen a small trained model to the shape of a large one."),
}


class LazyGroup(Group):
    """Lists its commands from the table, so that `lade --help` loads no model library.

    How they all end stands in `lade.applications.exits`.
    """

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
@click.version_option(package_name="lade", prog_name="lade")
def main() -> None:
    """Lookahead decoding for Hugging Face causal language models: the same text in fewer forward passes."""
