"""The page of a report in a headless Chromium: on a desk, on a phone, unfolded, with scripts off."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from handmade import drafting, folder_of, record

from lade.applications.bench.report import build
from lade.applications.bench.report.leaderboard import leaderboard
from lade.applications.bench.report.leaderboard_files import write
from lade.applications.bench.samples import SAMPLES, Sample, as_line

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.real
LONG = "multi_candidate:widths=4-2-2:replacement=1:draft_adapt=confidence"
PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 900}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with many categories and methods with long names."""
    methods = ("plain", "fast", LONG)
    records = [
        (record if method == "plain" else drafting)(
            method, f"{'prompt' * 9}-{prompt}", 1.0 + place, category=f"category_{prompt % 9}", temperature=temperature
        )
        for temperature in (0.0, 1.0)
        for prompt in range(18)
        for place, method in enumerate(methods)
    ]
    folder = folder_of(tmp_path_factory.mktemp("run"), records, methods=list(methods))
    steps = tuple((f"{'w' * place} ", place) for place in range(1, 80, 9))
    samples = [Sample("hand", 0, "A prompt " * 99, 0.0, method, steps) for method in methods]
    (folder / SAMPLES).write_text("".join(map(as_line, samples)))
    build(folder)
    return folder / "report.html"


@pytest.fixture
def opened(browser: Browser, report: Path) -> Iterator[Callable[[dict[str, int]], Page]]:
    """Opens the page without scripts; it asks for nothing but itself."""
    contexts, asked = list[Any](), set[str]()

    def opened(viewport: dict[str, int]) -> Page:
        context = browser.new_context(viewport=viewport, java_script_enabled=False)
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: asked.add(request.url.partition(":")[0]))
        page.goto(report.as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert asked <= {"file", "data"}


def test_a_leaderboard_reads_on_a_phone(opened: Callable[..., Page], report: Path) -> None:
    page = opened(PHONE)
    page.goto(write(leaderboard([report.parent]), report.parent).as_uri())
    assert page.get_by_role("row", name=LONG).count() == 2
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    rank = page.get_by_role("cell", name="1", exact=True).first.bounding_box()
    assert rank is not None
    assert rank["width"] < 60


@pytest.mark.parametrize("viewport", [PHONE, DESK], ids=("phone", "desk"))
def test_the_page_never_scrolls_sideways(opened: Callable[..., Page], viewport: dict[str, int]) -> None:
    """Not even with everything unfolded: wide tables and pictures scroll inside."""
    page = opened(viewport)
    folded = page.locator("summary")
    for place in range(folded.count()):
        folded.nth(place).click()
    assert page.locator("details:not([open])").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") == viewport["width"]
    boxes = [box for box in (part.bounding_box() for part in page.locator("h1, dl, .wide, .pane").all()) if box]
    assert all(box["x"] >= 0 and box["x"] + box["width"] <= viewport["width"] for box in boxes)


def test_nothing_in_a_table_is_cut_off(opened: Callable[..., Page]) -> None:
    page = opened(PHONE)
    cut = "cells => cells.filter(cell => cell.scrollWidth > cell.clientWidth + 1).map(cell => cell.textContent)"
    assert page.locator("th, td").evaluate_all(cut) == []


def test_prompts_unfold_and_the_report_can_be_taken_along(opened: Callable[..., Page], report: Path) -> None:
    page = opened(DESK)
    row = page.get_by_role("row", name=f"{'prompt' * 9}-7").first
    assert not row.is_visible()
    page.get_by_text("Prompts of hand").first.click()
    assert row.is_visible()
    for name in ("CSV", "Markdown", "LaTeX"):
        with page.expect_download() as taken:
            page.get_by_role("link", name=name).click()
        file = taken.value
        assert Path(file.path()).read_bytes() == (report.parent / file.suggested_filename).read_bytes()
