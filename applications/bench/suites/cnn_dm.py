"""CNN/DailyMail (arXiv 1704.04368, version 3.0.0): news articles to summarise; the first 1000 of its validation split.

Not shipped: the articles are CNN's and the Daily Mail's. The prompt has the form of `xsum`'s.
"""

from functools import partial

from lade.applications.bench.prompts import Prompt
from lade.applications.bench.suites.hub import Hub
from lade.applications.bench.suites.sources import DataRow, Local, load
from lade.applications.bench.suites.suite import Suite
from lade.applications.bench.suites.xsum import summary_of


def prompt(_: int, row: DataRow) -> Prompt:
    return summary_of(row["article"], row["id"])


SUITE = Suite(
    "cnn_dm",
    partial(
        load,
        "cnn_dm",
        Local("cnn_dm/validation.jsonl", prompt),
        Hub("abisee/cnn_dailymail", "3.0.0", "validation", prompt),
    ),
    "unclear (the articles are CNN's and the Daily Mail's)",
)
