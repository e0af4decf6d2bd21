"""Self-Instruct (arXiv 2212.10560): 252 instructions that its authors wrote with users of common services in mind.

The prompt is instruction, input where there is one, and "Output:", one of the forms its authors train with.
"""

from functools import partial

from lade.applications.bench.prompts import Prompt
from lade.applications.bench.suites.sources import DataRow, Shipped, load
from lade.applications.bench.suites.suite import Suite

FILE = "self_instruct/user_oriented_instructions.jsonl.gz"


def prompt(_: int, row: DataRow) -> Prompt:
    parts = row["instruction"].strip(), row["instances"][0]["input"].strip(), "Output:"
    return Prompt(row["id"], ("\n\n".join(filter(None, parts)),))


SUITE = Suite("self_instruct", partial(load, "self_instruct", Shipped(FILE, prompt)), "Apache-2.0")
