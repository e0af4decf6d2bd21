"""24 openings of children's stories, to be continued as they stand: what the TinyStories models know how to do."""

from functools import partial

from lade.applications.bench.prompts import Prompt
from lade.applications.bench.suites.sources import DataRow, Shipped, load
from lade.applications.bench.suites.suite import Suite


def prompt(_: int, row: DataRow) -> Prompt:
    return Prompt(row["prompt_id"], (row["prompt"],))


SUITE = Suite("stories", partial(load, "stories", Shipped("stories/openings.jsonl", prompt)), "Apache-2.0")
