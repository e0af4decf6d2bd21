"""What a report's files hold, for runs made by hand: summary, Markdown, pictures, page; and what it refuses."""

import base64
import io
import json
import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from handmade import HEAD, drafting, folder_of, parting, record, two_tasks
from rich.cells import cell_len
from rich.console import Console

from lade.applications.bench.records import Record, as_line
from lade.applications.bench.report import build
from lade.applications.bench.report.pictures import PICTURES
from lade.applications.bench_report import command

FILES = {"summary.json", "report.md", "report.html", "report.csv", "report.tex"}
ALWAYS = {"speed.png", "accepted.png", "cost.png"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nobody writes in it."""
    found = folder_of(tmp_path_factory.mktemp("run"), two_tasks(), tasks={})
    build(found)
    return found


def report_of(folder: Path, *options: str) -> Result:
    return CliRunner().invoke(command, [str(folder), *options])


def cells(markdown: str, title: str) -> dict[str, list[str]]:
    """The grid below a title: cells by the row's first one."""
    part = markdown.split(f"### {title}\n", 1)[1].split("\n### ", 1)[0]
    lines = [line for line in part.splitlines() if line.startswith("|")]
    found = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return {row[0]: row[1:] for row in found}


class Page(HTMLParser):
    """What a page shows and what it would fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.pictures: list[bytes] = []
        self.fetched: list[str] = []
        self.downloads: dict[str | None, str] = {}
        self.text = ""
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        download = dict(attrs).get("download")
        for name, value in attrs:
            if name in ("src", "href") and value is not None:
                kind, _, content = value.partition("base64,")
                if kind == "data:image/png;":
                    self.pictures.append(base64.b64decode(content))
                elif kind.startswith("data:") and download is not None:
                    self.downloads[download] = base64.b64decode(content).decode()
                else:
                    self.fetched.append(value)
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


# Tables


def test_the_table_has_spec_bench_s_layout(folder: Path) -> None:
    table = cells((folder / "report.md").read_text(), "Speed by task")
    assert table["Method"] == ["hand", "other", "#Mean accepted tokens", "Overall"]
    assert table["plain"] == ["1.00×", "1.00×", "1.09", "1.00× (n < 6)"]
    # Twice and four times as fast on one task, half as fast on the other; 12 tokens in 4 steps.
    assert table["brand-new"] == ["3.00×", "0.50×", "3.00", "2.00× (n < 6)"]


def test_a_task_with_categories_has_them_as_columns(folder: Path) -> None:
    markdown = (folder / "report.md").read_text()
    table = cells(markdown, "Speed by category of hand")
    assert table["Method"] == ["prose", "verse", "#Mean accepted tokens", "Overall"]
    assert table["brand-new"][:2] == ["2.00×", "4.00×"]
    assert "category of other" not in markdown


def test_every_figure_of_acceptance_stands_beside_the_repeated_4_grams(folder: Path) -> None:
    markdown = (folder / "report.md").read_text()
    rows = [line for line in markdown.splitlines() if line.startswith("| hand | brand-new |")]
    assert "| hand | brand-new | suffix | 40 | 16 | 14 | 87.5% | 25.0% |" in rows
    assert "| hand | brand-new | 0.800 (n < 6) | 3.000 (n < 6) | 25.0% |" in rows
    assert "| hand | brand-new | 83.3% | 75.0% | 25.0% |" in rows  # depths 1 and 2
    assert "| hand | brand-new | 2 | 3.00 | 25.0% | 8.0 | 16.0 | 3.00× (n < 6) |" in rows
    assert "| hand | brand-new | 2/2 (100.0%) | 1/2 (50.0%) | 1 |" in rows  # right answers


@pytest.mark.usefixtures("undrawn")
def test_conditions_have_sections_of_their_own(tmp_path: Path) -> None:
    records = [
        changed
        for temperature in (0.0, 1.0)
        for changed in (
            record("plain", 0, 2.0, temperature=temperature),
            drafting("fast", 0, 1.0 + temperature, temperature=temperature),
        )
    ]
    build(folder_of(tmp_path, records))
    markdown = (tmp_path / "report.md").read_text()
    cold, warm = markdown.split("\n## temperature ")[1:]
    assert cells(cold, "Speed by task")["fast"][0] == "2.00×"
    assert cells(warm, "Speed by task")["fast"][0] == "1.00×"


@pytest.mark.usefixtures("undrawn")
def test_divergences_are_listed_the_inexplicable_first(tmp_path: Path) -> None:
    records = [
        record("plain", 0),
        record("fast", 0, parting=parting(0.5, 2.0), identical_to_plain=False),
        record("fast", "b|d", parting=parting(4.0, 16.0, explained=False), identical_to_plain=False),
    ]
    report = build(folder_of(tmp_path, records))
    markdown = (tmp_path / "report.md").read_text()
    rows = [line for line in markdown.splitlines() if line.startswith("| hand | fast |")]
    listed = [row for row in rows if "near-tie" in row or "NO" in row]
    assert listed == [
        "| hand | fast | b\\|d | 0 | 9 | 4 | 16.0 | NO |",
        "| hand | fast | 0 | 0 | 9 | 0.5 | 2.0 | near-tie |",
    ]
    assert "| hand | fast | 0/2 (0.0%) | 2 | 1 | 4 | 16.0 | – |" in rows
    assert any(
        "2 of 2 texts part from plain decoding's, 1 of them at a near-tie, 1 elsewhere" in note for note in report.notes
    )


@pytest.mark.usefixtures("undrawn")
def test_where_all_partings_are_near_ties_the_note_says_so(tmp_path: Path) -> None:
    parted = record("fast", 0, parting=parting(0.5, 2.0), identical_to_plain=False)
    (note,) = [note for note in build(folder_of(tmp_path, [record("plain", 0), parted])).notes if "part from" in note]
    assert note == "fast: 1 of 1 texts part from plain decoding's, all at near-ties; widest top-2 gap 0.5 (2.0 ulp)"


RATIOS = ((0.5, 0.6, 0.8), (2.0, 2.5, 3.0), (0.9, 1.0, 1.2))  # of three prompts


def repeated(times: int) -> list[Record]:
    return [
        one
        for prompt, ratios in enumerate(RATIOS)
        for repeat, ratio in enumerate(ratios * times)
        for one in (record("plain", prompt, 4.0, repeat=repeat), drafting("fast", prompt, 4.0 / ratio, repeat=repeat))
    ]


@pytest.mark.usefixtures("undrawn")
def test_prompts_that_ran_often_show_their_upper_ends(tmp_path: Path) -> None:
    report = build(folder_of(tmp_path, repeated(2)))
    row = next(line for line in (tmp_path / "report.md").read_text().splitlines() if "| 0.80× |" in line)
    assert row == "| hand | fast | 3 | 1 | 1 | 0 | 0.60× (0.50–0.80) | 0.80× |"
    fast = json.loads((tmp_path / "summary.json").read_text())["table"][1]
    assert fast["prompts"]["0"] == {
        "median": pytest.approx(0.6), "low": pytest.approx(0.5), "high": pytest.approx(0.8), "n": 6,
    }  # fmt: skip
    assert "prompts" not in report.brief[1]


@pytest.mark.usefixtures("undrawn")
def test_no_interval_stands_anywhere_where_few_prompts_ran(tmp_path: Path) -> None:
    """Neither over prompts nor over the runs of one."""
    result = report_of(folder_of(tmp_path, repeated(1)), "--json")
    shown = [*(tmp_path / name for name in ("report.md", "report.html", "summary.json")), result.stdout, result.stderr]
    for text in (part if isinstance(part, str) else part.read_text() for part in shown):
        assert not re.search(r"\d–\d", text)
        assert not re.search(r'"(low|high)": [^n]', text)
    assert "n < 6: no interval" in result.stderr
    assert "1.00× (n < 6)" in result.stderr
    assert "### Single prompts" not in (tmp_path / "report.md").read_text()


@pytest.mark.usefixtures("undrawn")
def test_ratios_to_several_baselines_stand_in_no_column_of_one(tmp_path: Path) -> None:
    records = [
        record("plain", 0, 8.0),
        record("alone", 0, 4.0, compared_with="alone"),
        drafting("fast", 0, 1.0, compared_with="alone"),
    ]
    result = report_of(folder_of(tmp_path, records))
    assert "× baseline (95%)" in result.stdout
    assert "fast (over alone)" in result.stdout
    for text in (result.stdout, (tmp_path / "report.md").read_text()):
        assert "× plain" not in text
    assert "× plain (95%)" in report_of(folder_of(tmp_path, two_tasks())).stdout


# Page and pictures


def test_the_page_holds_every_picture_and_method_and_fetches_nothing(folder: Path) -> None:
    page = Page((folder / "report.html").read_text())
    assert {path.name for path in folder.glob("*.png")} == ALWAYS
    assert sorted(page.pictures) == sorted(path.read_bytes() for path in folder.glob("*.png"))
    assert page.fetched == []
    assert page.open == []
    assert page.downloads == {name: (folder / name).read_text() for name in ("report.csv", "report.md", "report.tex")}
    for shown in ("brand-new", "plain", "made-by-hand", "an abacus", "no device for it", "Speed by category of hand"):
        assert shown in page.text


@pytest.mark.usefixtures("undrawn")
def test_names_are_no_markup(tmp_path: Path) -> None:
    name = "<b>bold</b>&co"
    build(folder_of(tmp_path, [record("plain", 0), drafting(name, "<i>", 1.0)], tasks={}))
    page = (tmp_path / "report.html").read_text()
    assert "<b>" not in page
    assert name in Page(page).text


def test_markdown_shows_the_pictures_beside_it(folder: Path) -> None:
    linked = re.findall(r"!\[[^]]+\]\(([^)]+)\)", (folder / "report.md").read_text())
    assert set(linked) == ALWAYS


def test_the_files_are_small_and_the_same_again(folder: Path, tmp_path: Path) -> None:
    for name in (*ALWAYS, *FILES):
        content = (folder / name).read_bytes()
        assert len(content) < (1_000_000 if name == "report.html" else 150_000)
        (tmp_path / name).write_bytes(b"of an earlier report")
    for name in ("results.jsonl", "run.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    (tmp_path / "context.png").write_bytes(b"of another run")
    build(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == FILES | ALWAYS | {"results.jsonl", "run.json"}
    for name in (*ALWAYS, *FILES):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes(), name


@pytest.fixture
def no_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "matplotlib", None)


@pytest.mark.usefixtures("no_matplotlib")
def test_without_matplotlib_everything_else_is_there(tmp_path: Path) -> None:
    result = report_of(folder_of(tmp_path, two_tasks()))
    assert result.exit_code == 0, result.output
    assert "no pictures: they need matplotlib; pip install 'lade-decoding[plot]'" in result.stdout
    assert {path.name for path in tmp_path.iterdir()} == FILES | {"results.jsonl", "run.json"}
    assert Page((tmp_path / "report.html").read_text()).pictures == []


@pytest.mark.usefixtures("no_matplotlib")
def test_without_matplotlib_the_pictures_of_an_earlier_report_stay(folder: Path, tmp_path: Path) -> None:
    folder_of(tmp_path, two_tasks())
    before = {name: (folder / name).read_bytes() for name in ALWAYS}
    for name, content in before.items():
        (tmp_path / name).write_bytes(content)
    result = report_of(tmp_path)
    assert result.exit_code == 0, result.output
    assert "the pictures are an earlier report's, and no new ones were drawn: they need matplotlib" in result.stdout
    assert {name: (tmp_path / name).read_bytes() for name in ALWAYS} == before
    assert sorted(Page((tmp_path / "report.html").read_text()).pictures) == sorted(before.values())
    assert set(re.findall(r"!\[[^]]+\]\(([^)]+)\)", (tmp_path / "report.md").read_text())) == ALWAYS


# The command, and what it is given


def test_the_command_prints_a_table_and_where_the_report_is(tmp_path: Path) -> None:
    result = report_of(folder_of(tmp_path, two_tasks(), widened_from={"hidden": 8}))
    assert result.exit_code == 0, result.output
    assert "made-by-hand (widened) · hand, other, 3 prompts × 1" in result.stdout
    assert result.stdout.splitlines()[-1] == f"report: {tmp_path / 'report.html'}"
    assert "{" not in result.stdout
    assert len(result.stdout) < 4000
    assert result.stderr == ""


@pytest.mark.usefixtures("undrawn")
def test_the_table_fits_80_columns(tmp_path: Path) -> None:
    """Long names are folded, figures are whole."""
    name = "multi_candidate:widths=4-2-2:replacement=1"
    records = [
        one
        for task in ("summarization", "math_reasoning")
        for temperature in (0.0, 0.7)
        for prompt in range(6)
        for one in (
            record("plain", prompt, 1.0, task=task, temperature=temperature),
            drafting(name, prompt, 0.4 + prompt / 99, task=task, temperature=temperature),
        )
    ]
    table = build(folder_of(tmp_path, records)).table
    console = Console(width=80, file=io.StringIO())
    console.print(table)
    text = console.file.getvalue()
    assert max(map(cell_len, text.splitlines())) <= 80
    assert "…" not in text
    assert text.count("2.35× (2.25–2.47)") == 4


@pytest.mark.usefixtures("undrawn")
def test_the_command_prints_one_json_object_alone_where_it_is_asked_for(tmp_path: Path) -> None:
    result = report_of(folder_of(tmp_path, two_tasks()), "--json")
    assert result.exit_code == 0, result.output
    assert result.stderr == report_of(tmp_path).stdout
    last = json.loads(result.stdout)
    assert last["machine"] == HEAD["machine"]
    assert [(row["task"], row["method"]) for row in last["table"]] == [
        ("hand", "plain"), ("hand", "brand-new"), ("other", "plain"), ("other", "brand-new"),
    ]  # fmt: skip
    assert [row["speed_ratio"]["median"] for row in last["overall"]] == [1.0, 2.0]
    assert last["table"] == [
        {name: value for name, value in row.items() if name != "prompts"}
        for row in json.loads((tmp_path / "summary.json").read_text())["table"]
    ]


@pytest.mark.usefixtures("undrawn")
def test_an_interrupted_run_is_reported_as_far_as_it_came(tmp_path: Path) -> None:
    options = HEAD["options"] | {"temperature": [0.0, 1.0]}  # type: ignore[operator]
    tasks = {
        "hand": {"prompts": 3, "skipped": 0, "turns_left_out": 2},
        "late": {"prompts": 1, "skipped": 0, "turns_left_out": 0},
    }
    records = [record("plain", 0, 2.0), drafting("fast", 0, 1.0), record("plain", 1, 1.0)]
    report = build(folder_of(tmp_path, records, options=options, tasks=tasks))
    assert report.rows[1]["speed_ratio"]["median"] == 2.0
    for note in (
        "static did not run: no device for it",
        "hand: 2 later turns do not fit: left out",
        "not finished: 2 of 3 runs of hand at temperature 0 · batch 1",
        "not finished: 0 of 1 runs of late at temperature 0 · batch 1",
        "not finished: 1 of 2 combinations of temperature, batch and context",
    ):
        assert note in report.notes


@pytest.mark.usefixtures("undrawn")
def test_the_cost_of_the_warm_table_is_told_once(tmp_path: Path) -> None:
    records = [drafting("fast", 0, 1.0, task=task, warm_seconds=5.5) for task in ("one", "two")]
    notes = build(folder_of(tmp_path, records, tasks={})).notes
    assert [note for note in notes if "warm table" in note] == ["fast: the warm table took 5.50 s, once"]


@pytest.mark.usefixtures("undrawn")
def test_a_finished_run_is_not_called_unfinished(tmp_path: Path) -> None:
    report = build(folder_of(tmp_path, [record("plain", 0), record("plain", 1)]))
    assert report.notes == [
        "static did not run: no device for it",
        "hand: 1 prompts do not fit the model's positions with the new tokens: skipped",
        "n < 6: no interval where fewer than 6 prompts or batches ran: hand",
    ]
    enough = folder_of(tmp_path, [record("plain", prompt) for prompt in range(6)])
    assert not [note for note in build(enough).notes if "no interval" in note]
    batches = folder_of(tmp_path, [record("plain", prompt, batch=2, seed=prompt // 2) for prompt in range(6)])
    assert [note for note in build(batches).notes if "no interval" in note]


def bad_files() -> Iterator[tuple[dict[str, Any], str]]:
    line = as_line(record("plain", 0))
    yield {"results.jsonl": None}, "results.jsonl: cannot be read"
    yield {"results.jsonl": ""}, "results.jsonl: must hold at least one record"
    yield {"results.jsonl": f"{line}{{"}, "results.jsonl:2: is not JSON"
    yield (
        {"results.jsonl": line.replace('"steps": 11', '"steps": "11"')},
        "results.jsonl:1: steps must be int, got '11'",
    )
    yield (
        {"results.jsonl": line.replace('"parting": null', '"parting": {}')},
        "record 1: parting.index must be int, got None",
    )
    yield {"run.json": None}, "run.json: cannot be read"
    yield {"run.json": "[]"}, "run.json: must be a JSON object"
    yield {"run.json": "{}"}, "run.json: the field 'model' is missing"
    for changes, message in (
        ({"model": 3}, "run.json: model must be str, got 3"),
        ({"left_out": []}, "run.json: left_out must be an object, got []"),
        ({"options": 1}, "run.json: options must be an object, got 1"),
        ({"options": {"batch": 1}}, "run.json: options.batch must be list, got 1"),
        ({"tasks": {"hand": 3}}, "run.json: tasks.hand must be an object, got 3"),
        ({"tasks": {"hand": {}}}, "run.json: the field 'tasks.hand.prompts' is missing"),
        ({"tasks": {"hand": {"prompts": True}}}, "run.json: tasks.hand.prompts must be int, got True"),
    ):
        yield {"run.json": json.dumps(HEAD | changes)}, message


@pytest.mark.parametrize(("changes", "message"), list(bad_files()))
def test_what_cannot_be_used_is_named_and_nothing_is_written(
    changes: dict[str, str | None], message: str, tmp_path: Path
) -> None:
    folder_of(tmp_path, [record("plain", 0)])
    for name, content in changes.items():
        if content is None:
            (tmp_path / name).unlink()
        else:
            (tmp_path / name).write_text(content)
    before = sorted(path.name for path in tmp_path.iterdir())
    result = report_of(tmp_path)
    assert result.exit_code == 2
    assert message in result.stderr
    assert str(tmp_path) in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_every_picture_has_a_name_and_a_caption_of_its_own() -> None:
    assert (
        len({picture.name for picture in PICTURES}) == len({picture.caption for picture in PICTURES}) == len(PICTURES)
    )
