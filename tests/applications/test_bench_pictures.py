"""What the report draws: from the same findings as its tables, every method by its row alone."""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from handmade import HEAD, drafting, record, two_tasks
from matplotlib.container import BarContainer, ErrorbarContainer
from PIL import Image

from lade.applications.bench.methods import METHODS, BenchMethod, plain
from lade.applications.bench.records import Record
from lade.applications.bench.report import drawn_options, drawn_speed, drawn_steps
from lade.applications.bench.report.findings import Findings, find
from lade.applications.bench.report.results import Results
from lade.applications.bench.report.style import COLOURS, GREY, looks, panels, png, whiskers
from lade.applications.interval import Estimate


def found(records: Sequence[Record]) -> Findings:
    return find(Results(Path(), HEAD, list(records)))


def legend_of(panel: Any) -> list[str]:
    return [text.get_text().splitlines()[0] for text in panel.get_legend().get_texts()]


def assert_readable(figure: Any) -> None:
    for panel in figure.axes:
        assert panel.get_xlabel()
        assert panel.get_ylabel()
        assert panel.get_title()


def test_speed_by_task_has_a_bar_for_every_method_and_task() -> None:
    figure = drawn_speed.by_task(found(two_tasks()))
    (panel,) = figure.axes
    assert_readable(figure)
    assert legend_of(panel) == ["plain", "brand-new"]
    assert [label.get_text() for label in panel.get_xticklabels()] == ["hand", "other"]
    assert heights(panel) == pytest.approx([3.0, 0.5])


def heights(panel: Any) -> list[float]:
    containers = [container for container in panel.containers if isinstance(container, BarContainer)]
    return [bar.get_height() for container in containers for bar in container]


def spans(panel: Any) -> list[list[float]]:
    """Of the whiskers that can be seen, from below to above."""
    whiskers = [container for container in panel.containers if isinstance(container, ErrorbarContainer)]
    segments = [segment for whisker in whiskers for part in whisker[2] for segment in part.get_segments()]
    return [segment[:, 1].tolist() for segment in segments if segment.size]


def paired(method: str, ratios: Sequence[float], **changes: Any) -> list[Record]:
    """A prompt for each ratio to plain decoding."""
    return [
        one
        for prompt, ratio in enumerate(ratios)
        for one in (record("plain", prompt, 2.0, **changes), record(method, prompt, 2.0 / ratio, **changes))
    ]


def test_whiskers_are_drawn_from_six_prompts_on_and_never_without_width() -> None:
    records = [
        *paired("fast", [2.0, 4.0] * 3, task="six"),
        *paired("fast", [2.0, 4.0], task="few"),
        *paired("fast", [2.0] * 6, task="alike"),
    ]
    (panel,) = drawn_speed.by_task(found(records)).axes
    assert heights(panel) == pytest.approx([3.0, 3.0, 2.0])
    assert spans(panel) == [pytest.approx([2.0, 4.0])]
    assert panel.get_xlabel() == "task (without whiskers: n < 6, no interval)"
    (panel,) = drawn_speed.by_task(found(records[:12])).axes
    assert panel.get_xlabel() == "task"


def two_baselines(**changes: Any) -> list[Record]:
    return [
        record("alone", 0, 4.0, compared_with="alone", **changes),
        record("faster", 0, 1.0, compared_with="alone", **changes),
        record("plain", 0, 2.0, **changes),
        record("fast", 0, 1.0, **changes),
    ]


def test_ratios_to_different_baselines_have_axes_of_their_own() -> None:
    """And what they are compared with is no bar at 1 but the line there."""
    plain, alone = drawn_speed.by_task(found(two_baselines())).axes
    assert (legend_of(plain), heights(plain)) == (["plain", "fast"], [2.0])
    assert (legend_of(alone), heights(alone)) == (["alone", "faster"], [4.0])
    assert (plain.get_ylabel(), alone.get_ylabel()) == ("speed, × plain decoding", "speed, × alone")
    assert (plain.get_title(), alone.get_title()) == ("temperature 0 · batch 1", "temperature 0 · batch 1 · over alone")
    figure = drawn_speed.against_batch(found([*two_baselines(), *two_baselines(batch=4)]))
    assert [legend_of(panel) for panel in figure.axes] == [["plain", "fast"], ["alone", "faster"]]
    assert [panel.get_ylabel() for panel in figure.axes] == ["speed, × plain decoding", "speed, × alone"]
    assert drawn_speed.by_task(found([record("plain", 0), record("alone", 0, compared_with="alone")])) is None


def test_a_method_that_did_not_run_on_a_task_has_no_bar_there() -> None:
    records = [*two_tasks(), record("plain", 0, task="third")]
    (panel,) = drawn_speed.by_task(found(records)).axes
    assert [label.get_text() for label in panel.get_xticklabels()] == ["hand", "other", "third"]
    (bars,) = [container for container in panel.containers if isinstance(container, BarContainer)]
    assert len(bars) == 2


@pytest.mark.parametrize(
    ("name", "draw", "values"),
    [
        ("context", drawn_speed.against_context, (64, 1024)),
        ("batch", drawn_speed.against_batch, (1, 8)),
    ],
)
def test_speed_is_drawn_against_what_was_varied_and_nothing_else(name: str, draw: Any, values: tuple[int, int]) -> None:
    first, last = values
    records = [
        *(record("plain", 0, 4.0, **{name: value}) for value in values),
        record("fast", 0, 1.0, **{name: first}),
        record("fast", 0, 2.0, **{name: last}),
    ]
    figure = draw(found(records))
    (panel,) = figure.axes
    assert_readable(figure)
    assert legend_of(panel) == ["plain", "fast"]
    lines = {line.get_label(): line for line in panel.get_lines()} | {
        container.get_label(): container[0] for container in panel.containers
    }
    assert lines["fast"].get_xdata().tolist() == [first, last]
    assert lines["fast"].get_ydata().tolist() == [4.0, 2.0]
    others = {drawn_speed.against_context, drawn_speed.against_batch} - {draw}
    assert all(other(found(records)) is None for other in others)
    assert draw(found([record("plain", 0), record("fast", 0)])) is None


def test_prompts_of_their_own_length_are_no_context_to_draw_against() -> None:
    assert drawn_speed.against_context(found([record("plain", 0), record("plain", 0, context=64)])) is None


def test_accepted_lengths_are_shares_of_steps() -> None:
    single = record("plain", 9, accepted_lengths={1: 11})  # drafts nothing: not drawn
    (panel,) = drawn_steps.accepted_lengths(found([*two_tasks(), single])).axes
    (line,) = panel.get_lines()
    assert line.get_xdata().tolist() == [1, 2, 3, 4, 5]
    assert line.get_ydata().tolist() == [0.25, 0.25, 0.0, 0.0, 0.5]
    (text,) = panel.get_legend().get_texts()
    assert text.get_text() == "brand-new\nmean accepted tokens 3.00,\nrepeated 4-grams 25%"
    assert drawn_steps.accepted_lengths(found([record("plain", 0)])) is None


def test_the_last_accepted_length_holds_all_longer_ones() -> None:
    lengths = {1: 5, drawn_steps.LONG: 2, 40: 3}
    (panel,) = drawn_steps.accepted_lengths(found([drafting("fast", 0, 1.0, accepted_lengths=lengths)])).axes
    (line,) = panel.get_lines()
    assert line.get_xdata().tolist() == list(range(1, drawn_steps.LONG + 1))
    assert (line.get_ydata()[0], line.get_ydata()[-1], sum(line.get_ydata())) == (0.5, 0.5, 1.0)
    assert panel.xaxis.get_major_formatter()(drawn_steps.LONG, 0) == f"≥ {drawn_steps.LONG}"


def test_categories_of_a_single_task_have_bars() -> None:
    records = [
        one
        for prompt, category in enumerate(("prose", "verse"))
        for one in (record("plain", prompt, category=category), record("fast", prompt, 0.5, category=category))
    ]
    (panel,) = drawn_speed.by_task(found(records)).axes
    assert [label.get_text() for label in panel.get_xticklabels()] == ["prose", "verse"]
    assert heights(panel) == [2.0, 2.0]


def test_the_cost_curve_is_milliseconds_against_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "compiled", BenchMethod("compiled", plain, baseline=True))
    records = [
        record("plain", 0, model_seconds=1.1, widths={1: 11}),
        record("plain", 1, model_seconds=3.3, widths={1: 11}),
        record("compiled", 0, model_seconds=0.11, widths={1: 11}),
        drafting("fast", 0, 1.0, model_seconds=2.0, widths={4: 2, 12: 2}),
        drafting("telling nothing", 0, 1.0, model_seconds=4.0, widths={}, mean_forward_tokens=32.0),
    ]
    figure = drawn_steps.cost_curve(found(records))
    (panel,) = figure.axes
    assert_readable(figure)
    assert legend_of(panel) == ["plain", "compiled", "fast", "telling nothing", "medians"]
    points = [spot.get_offsets().tolist() for spot in panel.collections]
    assert points == [
        [[1, pytest.approx(100)], [1, pytest.approx(300)]], [[1, pytest.approx(10)]], [[8, 500]], [[32, 1000]],
    ]  # fmt: skip
    (curve,) = panel.get_lines()
    assert curve.get_xdata().tolist() == [1, 8, 32]
    assert curve.get_ydata().tolist() == [pytest.approx(200), 500, 1000]


def test_a_run_that_was_held_up_does_not_flatten_the_others() -> None:
    records = [record("plain", prompt, model_seconds=1.1, widths={1: 11}) for prompt in range(4)]
    held_up = record("plain", 4, model_seconds=1100.0, widths={1: 11})
    (panel,) = drawn_steps.cost_curve(found([*records, held_up])).axes
    assert panel.get_ylim() == (0, pytest.approx(300))
    assert [text.get_text() for text in panel.texts] == ["1 of 5 runs above"]
    (panel,) = drawn_steps.cost_curve(found(records)).axes
    assert panel.get_ylim()[1] < 120
    assert not panel.texts


def test_nothing_is_drawn_of_costs_where_no_forward_followed_the_prefill() -> None:
    only = record("plain", 0, steps=0, tokens_per_step=None, mean_forward_tokens=None, new_tokens=1)
    assert drawn_steps.cost_curve(found([only])) is None


def test_runtime_is_drawn_against_every_option_that_alone_differs() -> None:
    records = [record("plain", 0, 1.2)]
    for label, seconds in (
        ("draft:draft_tokens=3", 0.6),
        ("draft:draft_tokens=12", 2.4),
        ("other:draft_tokens=3:budget=8", 3.6),
        ("other:draft_tokens=3:budget=4", 4.8),
        ("alone:draft_tokens=5", 1.0),  # nothing to compare it with
        ("named:skip=a", 1.0),  # no numbers
        ("named:skip=b", 1.0),
    ):
        records.append(drafting(label, 0, seconds))
    figure = drawn_options.runtime(found(records))
    assert_readable(figure)
    assert [panel.get_title().split()[0] for panel in figure.axes] == ["draft_tokens", "budget"]
    tokens, budget = figure.axes
    assert legend_of(tokens) == ["draft", "plain"]
    assert tokens.lines[0].get_xydata().tolist() == [[3.0, pytest.approx(50)], [12.0, pytest.approx(200)]]
    assert tokens.lines[1].get_ydata()[0] == pytest.approx(100)  # plain decoding
    assert legend_of(budget) == ["other:draft_tokens=3", "plain"]
    assert budget.lines[0].get_xydata().tolist() == [[4.0, pytest.approx(400)], [8.0, pytest.approx(300)]]
    assert drawn_options.runtime(found(two_tasks())) is None


def test_the_acceptance_rate_is_drawn_against_candidates() -> None:
    rates = {"1-1": 2, "4-1": 8, "2-2": 5}
    records = [
        drafting(f"many:widths={widths}", 0, 1.0, verified_by_depth={1: 10}, accepted_by_depth={1: accepted})
        for widths, accepted in rates.items()
    ]
    deeper = drafting("many:widths=3-1-1", 0, 1.0)
    figure = drawn_options.acceptance(found([record("plain", 0), *records, deeper]))
    assert_readable(figure)
    (panel,) = figure.axes
    assert legend_of(panel) == ["many, depth 2", "many, depth 3"]
    lines = [bar.lines[0] for bar in panel.containers]
    assert lines[0].get_xydata().tolist() == [[1.0, 0.2], [2.0, 0.5], [4.0, 0.8]]
    assert lines[1].get_xydata().tolist() == [[3.0, 0.8]]
    assert [text.get_text() for text in panel.texts] == ["1-1", "2-2", "4-1", "3-1-1"]
    assert drawn_options.acceptance(found([record("plain", 0), deeper])) is None


def test_every_condition_has_axes_of_its_own() -> None:
    records = [record(method, 0, temperature=t) for method in ("plain", "fast") for t in (0.0, 1.0)]
    figure = drawn_speed.by_task(found(records))
    assert [panel.get_title() for panel in figure.axes] == ["temperature 0 · batch 1", "temperature 1 · batch 1"]


@pytest.mark.parametrize("draw", [drawn_speed.by_task, drawn_steps.accepted_lengths, drawn_steps.cost_curve])
def test_all_axes_of_a_picture_have_one_scale_that_holds_everything(draw: Any) -> None:
    records = [
        *(record("plain", 0, 2.0, temperature=t) for t in (0.0, 1.0)),
        drafting("fast", 0, 1.0, temperature=0.0),
        drafting("fast", 0, 0.1, temperature=1.0, model_seconds=1.1, widths={64: 4}, accepted_lengths={9: 4}),
        record("plain", 1, 2.0, temperature=1.0, task="another"),
    ]
    first, second = draw(found(records)).axes
    assert first.get_ylim() == second.get_ylim()
    assert first.get_xlim() == second.get_xlim()
    for panel in (first, second):
        assert panel.get_ylim()[0] == 0
        assert panel.get_ylim()[1] >= panel.dataLim.y1
        assert all(label.get_visible() for label in panel.get_xticklabels())


def test_runtime_has_one_scale_for_all_and_one_for_each_option() -> None:
    records = [
        drafting(label, 0, seconds, temperature=t)
        for t in (0.0, 1.0)
        for label, seconds in (("a:x=1", 1 + t), ("a:x=3", 2.0), ("b:y=10", 1.0), ("b:y=99", 1.0))
    ]
    figure = drawn_options.runtime(found([record("plain", 0), *records]))
    assert len({panel.get_ylim() for panel in figure.axes}) == 1
    limits = {panel.get_xlabel(): set() for panel in figure.axes}
    for panel in figure.axes:
        limits[panel.get_xlabel()].add(panel.get_xlim())
    assert {name: len(found) for name, found in limits.items()} == {"x": 1, "y": 1}


def test_a_method_keeps_its_colour_from_picture_to_picture() -> None:
    records = [record("plain", 0), drafting("fast", 0, 1.0)]
    records += [drafting(f"many:widths={k}-1", 0, 1.0) for k in (1, 2)]
    findings = found(records)
    colours = looks(findings.methods)
    (panel,) = drawn_options.acceptance(findings).axes
    (panel_of_runtime,) = drawn_steps.accepted_lengths(findings).axes
    assert panel.containers[0].lines[0].get_color() == colours["many:widths=1-1"].colour
    assert panel_of_runtime.lines[1].get_color() == colours["many:widths=1-1"].colour
    assert colours["fast"].colour != colours["many:widths=1-1"].colour


def test_no_legend_is_cut_however_many_and_long_its_labels_are() -> None:
    labels = [f"some method:with many=options:and a number={number:03}" for number in range(24)]
    records = [drafting(label, 0, 1.0, temperature=t) for label in labels for t in (0.0, 1.0)]
    figure = drawn_steps.accepted_lengths(found(records))
    figure.draw_without_rendering()
    boxes = [panel.get_legend().get_window_extent() for panel in figure.axes]
    page = figure.bbox
    for panel, box in zip(figure.axes, boxes, strict=True):
        assert box.x1 <= page.x1
        assert page.y0 <= box.y0 < box.y1 <= page.y1
        assert panel.get_window_extent().width > 3 * figure.dpi
        assert panel.get_window_extent().x1 <= box.x0
    assert boxes[1].y1 <= boxes[0].y0


def test_methods_look_different_however_many_there_are() -> None:
    methods = ["plain", *(f"method {number}" for number in range(60))]
    found = looks(methods)
    assert len({look.colour for look in found.values()}) == len(methods)
    assert looks(methods) == found
    assert found["plain"].colour == GREY
    assert [found[method].colour for method in methods[1:8]] == list(COLOURS)


def test_fewer_tones_leave_the_colours_as_they_are() -> None:
    figure, (panel,) = panels(["colours"], 7, 3)
    for place, colour in enumerate(COLOURS):
        panel.plot([0, 1], [place, place + 1], color=colour, marker="o")
    image = Image.open(BytesIO(png(figure)))
    tones = {pixel for _, pixel in image.convert("RGB").getcolors(maxcolors=256) or []}
    assert {tuple(bytes.fromhex(colour[1:])) for colour in COLOURS} <= tones


def test_whiskers_are_never_negative() -> None:
    """An interval of resampled sums may lie beside the whole's."""
    assert whiskers([Estimate(2.0, 1.5, 3.0, 6), Estimate(2.0, 2.5, 3.0, 6)]) == [[0.5, 0.0], [1.0, 1.0]]
