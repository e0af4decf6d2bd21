"""XSum (arXiv 1808.08745): news articles to summarise in a sentence; the first 1000 of its validation split.

Not shipped: the articles are the BBC's. The prompt is Spec-Bench's "Summarize:" line, closed by "Summary:", as the
original LookaheadDecoding closes its own, so that a model that only continues text does not continue the article.
"""

from functools import partial

from lade.applications.bench.prompts import Prompt
from lade.applications.bench.suites.hub import Hub
from lade.applications.bench.suites.sources import DataRow, Local, load
from lade.applications.bench.suites.suite import Suite


def prompt(_: int, row: DataRow) -> Prompt:
    return summary_of(row["document"], row["id"])


def summary_of(article: str, prompt_id: str | int) -> Prompt:
    return Prompt(prompt_id, (f"Summarize: {article}\nSummary:",))


SUITE = Suite(
    "xsum",
    partial(
        load,
        "xsum",
        Local("xsum/validation.jsonl", prompt),
        Hub("EdinburghNLP/xsum", "default", "validation", prompt, revision="refs/convert/parquet"),
    ),
    "unclear (the articles are the BBC's)",
)
