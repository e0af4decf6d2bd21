"""GSM8K (arXiv 2110.14168): the 1319 problems of its test split.

The prompt is "Question: ...", then "Answer:", which tells a model that only continues text what to write: the form of
lm-evaluation-harness, without its worked examples.
"""

from functools import partial

from lade.applications.bench.prompts import Prompt
from lade.applications.bench.scoring import gsm8k
from lade.applications.bench.suites.sources import DataRow, Shipped, load
from lade.applications.bench.suites.suite import Suite


def prompt(number: int, row: DataRow) -> Prompt:
    return Prompt(
        number, (f"Question: {row['question']}\nAnswer:",), answer=row["answer"].rpartition("####")[2].strip()
    )


SUITE = Suite("gsm8k", partial(load, "gsm8k", Shipped("gsm8k/test.jsonl.gz", prompt)), "MIT", gsm8k.score)
