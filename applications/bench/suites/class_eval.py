"""ClassEval (arXiv 2308.01861): 100 classes to complete.

The prompt is the class's skeleton alone, as its authors give it to models that only continue code. Not scored: its
tests need packages and files that the sandbox does not have.
"""

from functools import partial

from lade.applications.bench.prompts import Prompt
from lade.applications.bench.suites.sources import DataRow, Shipped, load
from lade.applications.bench.suites.suite import Suite


def prompt(_: int, row: DataRow) -> Prompt:
    return Prompt(row["task_id"], (row["skeleton"],))


SUITE = Suite("class_eval", partial(load, "class_eval", Shipped("class_eval/skeletons.jsonl.gz", prompt)), "MIT")
