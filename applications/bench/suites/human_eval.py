"""HumanEval (arXiv 2107.03374): 164 functions to complete; the prompt is the function's head itself, as there."""

from functools import partial

from lade.applications.bench.prompts import Prompt
from lade.applications.bench.scoring import human_eval
from lade.applications.bench.suites.sources import DataRow, Shipped, load
from lade.applications.bench.suites.suite import Suite


def prompt(_: int, row: DataRow) -> Prompt:
    return Prompt(row["task_id"], (row["prompt"],), answer=human_eval.HumanEvalTests(row["test"], row["entry_point"]))


SUITE = Suite(
    "human_eval",
    partial(load, "human_eval", Shipped("human_eval/HumanEval.jsonl.gz", prompt)),
    "MIT",
    human_eval.score,
    executes=True,
)
