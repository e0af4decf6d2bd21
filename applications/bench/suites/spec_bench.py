"""Spec-Bench (arXiv 2401.07851): 480 prompts in six parts, asked as they stand.

Not shipped: its summaries, questions and passages come from data sets whose terms for the text are not clear. They are
read from the file of that name in github.com/hemingkx/Spec-Bench.
"""

from functools import partial

from lade.applications.bench.prompts import Prompt
from lade.applications.bench.suites.sources import DataRow, Local, load
from lade.applications.bench.suites.suite import Suite

FILE = "spec_bench/question.jsonl"
COLUMNS = {  # headings and order are Spec-Bench's own
    "mt_bench": "Multi-turn Conversation",
    "translation": "Translation",
    "summarization": "Summarization",
    "qa": "Question Answering",
    "math_reasoning": "Mathematical Reasoning",
    "rag": "Retrieval-augmented Generation",
}


def prompt(_: int, row: DataRow) -> Prompt:
    """MT-bench's own eight categories are one part here."""
    category = row["category"] if row["category"] in COLUMNS else "mt_bench"
    return Prompt(row["question_id"], tuple(row["turns"]), category)


SUITE = Suite(
    "spec_bench",
    partial(load, "spec_bench", Local(FILE, prompt, f"data/{FILE} of github.com/hemingkx/Spec-Bench")),
    "Apache-2.0 for the collection, unclear for parts of its text",
    columns=COLUMNS,
)
