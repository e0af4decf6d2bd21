"""A report as CSV and LaTeX, and the tables of single prompts, for runs made by hand."""

import csv
import io
import re
from pathlib import Path

import pytest
from handmade import HEAD, drafting, record, two_tasks
from hypothesis import given, settings
from hypothesis import strategies as st

from lade.applications.bench.records import Record
from lade.applications.bench.report.document import ReportDocument, document_of
from lade.applications.bench.report.exports import escaped
from lade.applications.bench.report.findings import find
from lade.applications.bench.report.results import Results


def document(records: list[Record], **head: object) -> ReportDocument:
    return document_of(find(Results(Path(), HEAD | head, records)), [], {})


def lines_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_csv_has_a_line_for_every_task_category_and_method() -> None:
    lines = lines_of(document(two_tasks(), dtype="float32").csv)
    assert [(line["task"], line["category"], line["method"]) for line in lines] == [
        *(("hand", category, method) for category in ("prose", "verse", "all") for method in ("plain", "brand-new")),
        *((task, "all", method) for task in ("other", "all") for method in ("plain", "brand-new")),
    ]
    new = {(line["task"], line["category"]): line for line in lines if line["method"] == "brand-new"}
    assert float(new["hand", "verse"]["speed_ratio"]) == 4.0
    assert float(new["all", "all"]["mean_accepted_tokens"]) == 3.0
    assert new["all", "all"]["speed_ratio_low"] == ""  # fewer than six prompts
    assert {line["model"] for line in lines} == {"made-by-hand"}
    assert {line["dtype"] for line in lines} == {"float32"}


def test_latex_has_the_main_tables_and_no_character_that_is_a_command() -> None:
    text = document([record("plain", 0, 2.0), drafting("a_b&c%", 0, 1.0)]).latex
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 2  # results, speed by task
    assert r"a\_b\&c\% & 2.00$\times$ (n $<$ 6)" in text
    for table in text.split(r"\begin{tabular}")[1:]:
        columns = re.match(r"\{([lr]+)\}", table)
        assert columns is not None
        rows = [line for line in table.splitlines() if line.endswith(r"\\")]
        assert {len(re.split(r"(?<!\\)&", line)) for line in rows} == {len(columns[1])}


@settings(max_examples=200)
@given(st.text("a&%$#_{}\\~^<>", max_size=8))
def test_escaped_text_shows_as_it_was(text: str) -> None:
    shown = escaped(text)
    for sign, command in {
        "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": "$<$", ">": "$>$",
    }.items():  # fmt: skip
        shown = shown.replace(command, {"\\": "\0"}.get(sign, sign))
    shown = re.sub(r"\\([&%$#_{}])", r"\1", shown).replace("\0", "\\")
    assert shown == text


def test_every_prompt_has_a_row_with_all_methods() -> None:
    (section,) = document([*two_tasks(), drafting("odd", 1, 4.0, identical_to_plain=False)]).sections
    hand, other = section.prompts
    assert hand.header == ("Prompt", "category", "new tokens", "plain, tokens/s", "brand-new", "odd")
    assert hand.rows == (
        ("0", "prose", "12", "6.0", "2.00× · 3.00", "–"),
        ("1", "verse", "12", "6.0", "4.00× · 3.00", "0.50× · 3.00 ≠"),
    )
    assert other.rows == (("0", "12", "6.0", "0.50× · 3.00"),)


def test_the_heading_says_where_the_run_was_made() -> None:
    machine = {
        "device": "cpu", "cpu": "an abacus", "cores": 2, "threads": 1, "python": "3.12.1",
        "date": "2026-11-22T21:34:37+00:00", "versions": {"lade": "0.2.0", "torch": "2.13.0"},
    }  # fmt: skip
    options = {"temperature": [0.0, 0.7], "max_new_tokens": 12, "quant": "nf4", "draft": "small"}
    assert document(two_tasks(), machine=machine, options=options, dtype="bfloat16").heading == [
        ("Model", "made-by-hand"),
        ("Draft model", "small"),
        ("Weights", "bfloat16, quantised: nf4"),
        ("Device", "cpu"),
        ("Machine", "an abacus, 2 cores, 1 thread"),
        ("Versions", "lade 0.2.0, torch 2.13.0, Python 3.12.1"),
        ("Date (UTC)", "2026-11-22 21:34:37"),
        ("Prompts", "hand 2, other 1"),
        ("Decoding", "greedy, temperature 0.7, at most 12 new tokens"),
    ]


@pytest.mark.parametrize("right", [True, False])
def test_right_answers_are_shown_only_where_some_are_right(right: bool) -> None:
    records = [record("plain", 0, score=right), drafting("fast", 0, 1.0, score=False)]
    (section,) = document(records).sections
    assert ("Right answers" in section.tables[0].header) is right
    assert ("Right answers" in [table.title for table in section.details]) is right


@pytest.mark.parametrize(("units", "told"), [({}, "nats over tokens"), ({"text_units": "words"}, "bits over words")])
def test_the_table_of_texts_tells_the_unit_of_entropy(units: dict[str, str], told: str) -> None:
    (section,) = document([record("plain", 0, text_measures={"entropy-1": 1.0})], options=units).sections
    (texts,) = [table for table in section.details if table.title == "Texts"]
    assert f"Entropy of n-grams: {told}" in texts.note


def test_the_headline_names_the_fastest_method() -> None:
    (section,) = document(two_tasks()).sections
    assert section.headline == (
        "Fastest: brand-new, 2.00× (n < 6) the speed of plain decoding, 3.00 mean accepted tokens, 3 prompts."
    )
    (alone,) = document([record("plain", 0)]).sections
    assert alone.headline == ""
