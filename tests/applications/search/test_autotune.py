"""The search for the fastest setting, on synthetic speeds: its result, its cost, and going on after an interrupt."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lade.applications.search.autotune import (
    FINAL,
    SEARCH,
    Candidate,
    Measure,
    MeasurementKey,
    Round,
    SearchOutcome,
    measurements_of,
    rounds,
    search,
)
from lade.applications.search.measurements import MeasurementFile

PROMPTS = 12
HEAD = {"kind": "measurements", "format": 1, "model": "ab", "max_new_tokens": 64}
BUDGETS = [Candidate(size, f"budget={size}") for size in (1, 2, 4, 8, 16, 32, 64, 128)]


@dataclass
class Bench:
    """Measures a known speed with noise; the same call of the same candidate gives the same ratios."""

    speed: Callable[[Candidate], float]
    noise: float = 0.03
    seed: int = 0
    repeats: int = 2
    calls: list[MeasurementKey] = field(default_factory=list)
    until: int | None = None  # interrupted at this call

    def __call__(self, candidate: Candidate, prompt: int) -> list[float]:
        if len(self.calls) == self.until:
            raise KeyboardInterrupt
        stage = FINAL if (SEARCH, candidate.label, prompt) in self.calls else SEARCH
        self.calls.append((stage, candidate.label, prompt))
        generator = random.Random(f"{self.seed} {stage} {candidate.label} {prompt}")
        text = 1 + 0.1 * math.sin(prompt)  # some prompts are easier, for all candidates alike
        return [self.speed(candidate) * text * math.exp(generator.gauss(0, self.noise)) for _ in range(self.repeats)]


def hill(candidate: Candidate) -> float:
    """1.6 at a size of 16, 25% less at every doubling from there."""
    return 1.6 * 0.75 ** abs(math.log2(candidate.size / 16))


def best_of(outcome: SearchOutcome) -> str | None:
    return None if outcome.best is None else outcome.best.candidate.label


# What it finds


@pytest.mark.parametrize("seed", range(5))
def test_the_best_setting_of_a_noisy_surface_is_found(seed: int) -> None:
    outcome = search(BUDGETS, Bench(hill, seed=seed), PROMPTS)
    assert best_of(outcome) == "budget=16"
    assert outcome.best is not None
    assert outcome.best.speed.low is not None
    assert outcome.best.speed.high is not None
    assert outcome.best.speed.low < 1.6 < outcome.best.speed.high * 1.05
    assert outcome.standings[0] is outcome.best
    assert {standing.candidate for standing in outcome.standings} == set(BUDGETS)
    assert sum(standing.final for standing in outcome.standings) == 2


@pytest.mark.parametrize("seed", range(5))
def test_a_grid_of_two_dimensions_is_searched_as_well(seed: int) -> None:
    grid = {
        Candidate(n * w, f"{n},{w}"): 1.8 - 0.1 * abs(n - 5) - 0.03 * abs(w - 15) for n in (3, 5, 7) for w in (3, 7, 15)
    }
    assert best_of(search(list(grid), Bench(grid.__getitem__, seed=seed), PROMPTS)) == "5,15"


@pytest.mark.parametrize("seed", range(20))
def test_plain_decoding_stays_where_nothing_is_faster(seed: int) -> None:
    """Every candidate is as fast as plain decoding but for noise; the one with the best noise must not win.

    Each of 2 finalists lies wholly above 1 by chance with a probability below 2.5%.
    """
    candidates = [Candidate(size, str(size)) for size in range(1, 28)]
    outcome = search(candidates, Bench(lambda _: 1 / 1.1, seed=seed), PROMPTS)
    assert best_of(outcome) is None
    assert len(outcome.standings) == 27


def test_measurements_that_selected_a_candidate_do_not_count_in_the_final() -> None:
    """Fast in the runs that selected it, slow when measured anew."""
    calls: list[int] = []

    def measure(candidate: Candidate, prompt: int) -> list[float]:
        calls.append(prompt)
        return [1.5, 1.5] if len(calls) <= searched else [0.9, 0.9]

    searched = measurements_of(4, PROMPTS) - 2 * PROMPTS
    assert best_of(search(BUDGETS[:4], measure, PROMPTS)) is None


def test_ties_go_to_the_smaller_setting() -> None:
    two = [Candidate(60, "large"), Candidate(12, "small")]
    speeds = {two[0]: 1.405, two[1]: 1.40}
    assert best_of(search(two, Bench(speeds.__getitem__), PROMPTS)) == "small"
    speeds[two[0]] = 1.6
    assert best_of(search(two, Bench(speeds.__getitem__), PROMPTS)) == "large"


def test_settings_as_fast_as_each_other_leave_in_order_of_size() -> None:
    assert best_of(search(BUDGETS[::-1], lambda candidate, prompt: [1.5], PROMPTS)) == "budget=1"


@pytest.mark.parametrize(("prompts", "repeats", "enough"), [(1, 9, False), (5, 1, False), (5, 9, False), (6, 1, True)])
def test_a_few_prompts_prove_nothing(prompts: int, repeats: int, enough: bool) -> None:
    outcome = search(BUDGETS[:1], lambda candidate, prompt: [1.5] * repeats, prompts)
    assert (outcome.best is not None) is enough


def test_nothing_to_search_is_refused() -> None:
    for candidates, prompts, message in (
        ([], 3, r"candidates must be at least one, got \[\]"),
        (BUDGETS, 0, "prompts must be at least 1, got 0"),
    ):
        with pytest.raises(ValueError, match=message):
            search(candidates, lambda candidate, prompt: [1.0], prompts)


# What it costs


def test_each_round_halves_the_candidates_and_doubles_the_prompts() -> None:
    assert rounds(27, 16) == [Round(27, 2), Round(14, 4), Round(7, 8), Round(4, 16)]
    assert rounds(9, 16) == [Round(9, 4), Round(5, 8), Round(3, 16)]
    assert rounds(27, 1) == [Round(27, 1), Round(14, 1), Round(7, 1), Round(4, 1)]
    assert rounds(2, 16) == rounds(1, 16) == []


@pytest.mark.parametrize("candidates", [1, 2, 3, 9, 27])
@pytest.mark.parametrize("prompts", [1, 2, 5, 16])
def test_progress_counts_every_measurement_once(candidates: int, prompts: int) -> None:
    bench = Bench(hill)
    seen: list[tuple[int, int]] = []
    search([Candidate(size, str(size)) for size in range(1, candidates + 1)], bench, prompts, progress=seen_by(seen))
    total = measurements_of(candidates, prompts)
    assert len(bench.calls) == len(set(bench.calls)) == total
    assert [done for done, _ in dict.fromkeys(seen)] == list(range(1, total + 1))
    assert {whole for _, whole in seen} == {total}


def seen_by(seen: list[tuple[int, int]]) -> Callable[[int, int], None]:
    return lambda done, total: seen.append((done, total))


def test_most_prompts_are_spent_on_the_better_half() -> None:
    bench = Bench(hill, noise=0.0)
    search(BUDGETS, bench, PROMPTS)
    counts = {candidate.size: sum(label == candidate.label for _, label, _ in bench.calls) for candidate in BUDGETS}
    assert counts[16] == 2 * PROMPTS
    assert counts[1] == counts[128] == 6  # the first round alone


# Interrupts


@pytest.mark.parametrize("stop", [0, 10, 40])
def test_an_interrupted_search_goes_on_to_the_same_answer(stop: int, tmp_path: Path) -> None:
    whole = search(BUDGETS, Bench(hill, noise=0.2), PROMPTS)
    path = tmp_path / "found.jsonl"
    known = MeasurementFile(path, HEAD)
    interrupted = Bench(hill, noise=0.2, until=stop)
    with pytest.raises(KeyboardInterrupt):
        search(BUDGETS, interrupted, PROMPTS, known)
    assert list(known) == interrupted.calls
    assert len(known) == stop
    again = MeasurementFile(path, HEAD)
    assert dict(again) == dict(known)
    resumed = Bench(hill, noise=0.2, calls=list(again))
    assert search(BUDGETS, resumed, PROMPTS, again) == whole
    assert len(resumed.calls) == len(set(resumed.calls)) == measurements_of(len(BUDGETS), PROMPTS)


def test_a_finished_search_is_not_measured_again(tmp_path: Path) -> None:
    first = search(BUDGETS, Bench(hill), PROMPTS, MeasurementFile(tmp_path / "found.jsonl", HEAD))
    nobody: Measure = lambda candidate, prompt: pytest.fail(f"{candidate.label} was measured")  # noqa: E731
    assert search(BUDGETS, nobody, PROMPTS, MeasurementFile(tmp_path / "found.jsonl", HEAD)) == first


# The file


def test_the_beginning_of_a_line_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "found.jsonl"
    MeasurementFile(path, HEAD)["search", "a", 0] = [1.25, 1.5]
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"stage": "sea')
    known = MeasurementFile(path, HEAD)
    assert dict(known) == {("search", "a", 0): [1.25, 1.5]}
    assert path.read_bytes() == whole
    known["final", "a", 0] = [1.0]
    assert dict(MeasurementFile(path, HEAD)) == {("search", "a", 0): [1.25, 1.5], ("final", "a", 0): [1.0]}


@pytest.mark.parametrize(
    ("name", "value"), [("model", "cd"), ("max_new_tokens", 32), ("added", True), ("model", "long " * 99)]
)
def test_measurements_of_something_else_are_refused_by_name(name: str, value: object, tmp_path: Path) -> None:
    path = tmp_path / "found.jsonl"
    MeasurementFile(path, HEAD)["search", "a", 0] = [1.25]
    before = path.read_bytes()
    with pytest.raises(ValueError, match=f"was measured with {name}=") as caught:
        MeasurementFile(path, HEAD | {name: value})
    assert str(path) in str(caught.value)
    assert repr(HEAD.get(name)) in str(caught.value)
    assert repr(value)[:40] in str(caught.value)
    assert len(str(caught.value)) < len(str(path)) + 200
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no line", "has no complete line"),
        (b"\xff\xfe\n", "not a file of measurements"),
        (b"text\n", ":1: is not JSON"),
        (b"[]\n", ":1: must be a JSON object, got list"),
        (b'{"prompt": "Once upon a time"}\n', "not a file of measurements of this version"),
        (b'HEAD{"stage": "search"}\n', ":2: is not a measurement"),
        (b'HEAD{"stage": "search", "candidate": "a", "prompt": 0, "ratios": []}\n', ":2: is not a measurement"),
        (b'HEAD{"stage": "search", "candidate": "a", "prompt": 0, "ratios": [-1.0]}\n', ":2: is not a measurement"),
        (
            b'HEAD{"stage": "search", "candidate": "a", "prompt": 0, "ratios": [NaN]}\n',
            r":2: is not JSON \(a number must be finite",
        ),
    ],
)
def test_files_that_hold_something_else_are_refused(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "found.jsonl"
    MeasurementFile(path, HEAD)
    content = content.replace(b"HEAD", path.read_bytes())
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        MeasurementFile(path, HEAD)
    assert str(path) in str(caught.value)
    assert path.read_bytes() == content
