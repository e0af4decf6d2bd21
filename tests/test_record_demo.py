"""The recording of `lade demo` that heads the README: drawn from its data, whole, and without scripts."""

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import record_demo
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

DOCS = Path(__file__).parents[1] / "docs"
SVG = "{http://www.w3.org/2000/svg}"
TEXTS = st.lists(st.text(alphabet="ab \n", max_size=12), min_size=1, max_size=30)


@settings(max_examples=40)
@given(TEXTS)
def test_wrapped_lines_hold_the_whole_text(pieces: list[str]) -> None:
    """Only spaces at which a line breaks are gone."""
    text = "".join(pieces)
    lines = record_demo.wrapped(record_demo.cells([(float(number), [piece]) for number, piece in enumerate(pieces)]))
    assert all(len(line) <= record_demo.COLUMNS for line in lines)
    shown = ["".join(cell[0] for cell in line) for line in lines]
    assert re.sub(r"\s", "", "".join(shown)) == re.sub(r"\s", "", text)
    if all(len(line) <= record_demo.COLUMNS for line in text.split("\n")):
        assert "\n".join(shown) == text


def test_a_steps_first_token_has_no_colour() -> None:
    cells = record_demo.cells([(1.0, ["a", "b"]), (2.0, ["c", "d"])])
    assert cells == [("a", 0, ""), ("b", 0, "a"), ("c", 1, ""), ("d", 1, "b")]


def test_figures_follow_one_another_and_the_last_ones_stay() -> None:
    steps = [(0.3, ["a"]), (0.6, ["b", "c"]), (1.1, ["d"])]
    found = list(record_demo.figures(steps))
    assert all(before[1] == after[0] for before, after in pairwise(found))
    assert found[-1] == (1.1, None, " 1.1 s    4 tokens  2.00 per step  3.6 tokens/s")


@pytest.fixture(scope="module")
def picture() -> ElementTree.Element:
    return ElementTree.fromstring((DOCS / "demo.svg").read_text(encoding="utf-8"))


def test_the_picture_is_that_of_its_data() -> None:
    data = json.loads((DOCS / "demo.json").read_text(encoding="utf-8"))
    assert (DOCS / "demo.svg").read_text(encoding="utf-8") == record_demo.draw(data)
    texts = ["".join(piece for _, pieces in steps for piece in pieces) for steps in data["sides"].values()]
    assert texts[0] == texts[1]


def test_the_picture_moves_by_css_alone(picture: ElementTree.Element) -> None:
    assert {element.tag.removeprefix(SVG) for element in picture.iter()} == {
        "svg",
        "title",
        "style",
        "rect",
        "text",
        "tspan",
    }
    style = "".join(picture.find(f"{SVG}style").itertext())
    named = {name for element in picture.iter() for name in element.get("class", "").split() if name.startswith("k")}
    assert named == set(re.findall(r"@keyframes (k\d+)", style))
    assert "prefers-reduced-motion" in style
    assert "url(" not in style


def test_a_recorded_run_is_drawn(shipped: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = [
        "stories260K",
        "--out",
        str(tmp_path / "demo"),
        "--max-new-tokens",
        "12",
        "--prompt",
        "Once upon a time",
    ]
    monkeypatch.setattr("lade.models.load", lambda name, warm: shipped)
    result = CliRunner().invoke(record_demo.main, arguments, catch_exceptions=False)
    assert result.output.startswith("lade: the same 12 tokens in ")
    data = json.loads((tmp_path / "demo.json").read_text())
    assert sum(len(pieces) for _, pieces in data["sides"]["plain"]) == 12
    assert (tmp_path / "demo.svg").read_text() == record_demo.draw(data)
