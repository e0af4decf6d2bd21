"""MBPP (arXiv 2108.07732): the 500 problems of its test split, each a description with three tests.

The prompt is a docstring of both, after which a model that only continues text writes the code: the form of InCoder
(arXiv 2204.05999) and of bigcode-evaluation-harness, but with all three tests, as MBPP's authors show them.
"""

from functools import partial

from lade.applications.bench.prompts import Prompt
from lade.applications.bench.scoring import mbpp
from lade.applications.bench.suites.sources import DataRow, Shipped, load
from lade.applications.bench.suites.suite import Suite


def prompt(_: int, row: DataRow) -> Prompt:
    tests = "\n".join(row["test_list"])
    text = f'"""\n{row["text"].strip()}\n{tests}\n"""\n'
    return Prompt(row["task_id"], (text,), answer=mbpp.MbppTests(row["test_setup_code"], tests))


SUITE = Suite(
    "mbpp", partial(load, "mbpp", Shipped("mbpp/test.jsonl.gz", prompt)), "CC-BY-4.0", mbpp.score, executes=True
)
