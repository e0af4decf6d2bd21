"""MT-bench (arXiv 2306.05685): 80 questions of two turns each, asked as they stand, as its authors do."""

from functools import partial

from lade.applications.bench.prompts import Prompt
from lade.applications.bench.suites.sources import DataRow, Shipped, load
from lade.applications.bench.suites.suite import Suite


def prompt(_: int, row: DataRow) -> Prompt:
    return Prompt(row["question_id"], tuple(row["turns"]), row["category"])


SUITE = Suite("mt_bench", partial(load, "mt_bench", Shipped("mt_bench/question.jsonl", prompt)), "Apache-2.0")
