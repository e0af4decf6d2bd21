"""The report's figures, on records made by hand: every expected number was computed on paper."""

import random
from typing import Any

import pytest
from handmade import drafting, parting, record, two_tasks
from hypothesis import given, settings
from hypothesis import strategies as st

from lade.applications.bench.methods import METHODS, BenchMethod, plain
from lade.applications.bench.records import Record
from lade.applications.bench.report.conditions import Condition, by_condition
from lade.applications.bench.report.ratios import calls_of, of_prompt, over_prompts, speed_ratios
from lade.applications.bench.report.rows import speed_of, summarise
from lade.applications.interval import Estimate


def over(ratios: dict[int, list[float]]) -> Estimate | None:
    found = {("hand", prompt): values for prompt, values in ratios.items()}
    return over_prompts(found, {prompt: prompt for prompt in found})


# Ratios and their intervals


def test_ratios_pair_runs_of_one_prompt_turn_and_repeat() -> None:
    records = [
        record("plain", 0, 2.0),
        record("fast", 0, 1.0),
        record("plain", 0, 3.0, repeat=1),
        record("fast", 0, 1.0, repeat=1),
        record("plain", 0, 8.0, turn=1),
        record("fast", 0, 2.0, turn=1),
        record("plain", 1, 1.0),
        record("fast", 1, 1.0, new_tokens=6),  # half the text in the same time is half the speed
        record("plain", 1, 1.0, task="other"),  # another prompt 1
        record("fast", 2, 1.0),  # no partner
    ]
    assert speed_ratios(records, "fast", "plain") == {
        ("hand", 0): [pytest.approx(2), pytest.approx(3), pytest.approx(4)],
        ("hand", 1): [pytest.approx(0.5)],
    }


def test_a_prompt_counts_once_however_often_it_ran() -> None:
    found = over({0: [1.0, 1.0, 1.0, 1.0, 5.0], 1: [2.0], 2: [3.0]})
    assert found == Estimate(2.0, None, None, 3)  # of 1, 2 and 3; the median of all values would be 1
    many = over({0: [1.0] * 9, **{prompt: [float(prompt)] for prompt in range(2, 8)}})
    assert many is not None
    assert (many.median, many.low, many.high, many.n) == (4.0, 2.0, 6.0, 7)


def test_one_prompt_says_nothing_of_others_however_often_it_ran() -> None:
    assert over({0: [4.0]}) == Estimate(4.0, None, None, 1)
    assert over({0: [1.0, 2.0, 3.0] * 9}) == Estimate(2.0, None, None, 1)
    assert over({}) is None


def test_the_runs_of_one_prompt_have_an_interval_of_their_own() -> None:
    assert of_prompt([1.0, 2.0, 3.0]) == Estimate(2.0, None, None, 3)
    assert of_prompt([1.0, 2.0, 3.0] * 2) == Estimate(2.0, 1.0, 3.0, 6)


def test_prompts_of_a_batch_are_resampled_together() -> None:
    """Ten batches of ten, slow and fast ones: they may all be of one kind. A hundred single prompts would be surer."""
    records = [record("fast", index, 1.0, batch=10, rows=10, seed=index // 10) for index in range(100)]
    ratios = {("hand", index): [1 + index // 50 + index % 50 / 100] for index in range(100)}  # up to 1.49, from 2.0
    together, apart = (
        over_prompts(ratios, calls_of(records)),
        over({index: ratios["hand", index] for index in range(100)}),
    )
    assert together is not None
    assert apart is not None
    assert (together.low, together.high) == (pytest.approx(1.25, abs=0.1), pytest.approx(2.25, abs=0.1))
    assert (apart.low, apart.high) == (pytest.approx(1.4, abs=0.05), pytest.approx(2.09, abs=0.05))
    assert (together.n, apart.n) == (10, 100)
    lone = [record("fast", index, 1.0, batch=100, rows=100, seed=0) for index in range(100)]
    assert over_prompts(ratios, calls_of(lone)) == Estimate(pytest.approx(1.745), None, None, 1)
    later = [record("fast", index, 1.0, batch=10, rows=10, seed=9, repeat=1) for index in range(100)]
    assert calls_of(records + later) == calls_of(records)  # its first run names a batch
    assert len(set(calls_of([record("fast", index) for index in range(3)]).values())) == 3


def test_intervals_hold_the_true_median_about_as_often_as_they_say() -> None:
    """100 samples of 15 prompts, true median 0, so 95 are expected: below 84 or all 100 is as good as impossible."""
    generator = random.Random(0)
    held = 0
    for _ in range(100):
        found = over({prompt: [generator.gauss(0, 1)] for prompt in range(15)})
        assert found is not None
        held += not found.above(0) and not found.below(0)
    assert 84 <= held < 100


@settings(max_examples=20)
@given(st.dictionaries(st.integers(0, 20), st.lists(st.floats(0.1, 10), min_size=1, max_size=3), min_size=6))
def test_an_interval_lies_among_the_values_and_does_not_change(ratios: dict[int, list[float]]) -> None:
    found = over(ratios)
    assert found is not None
    values = [value for group in ratios.values() for value in group]
    assert found.low is not None
    assert found.high is not None
    assert min(values) <= found.low <= found.high <= max(values)
    assert min(values) <= found.median <= max(values)
    assert over(ratios) == found


# Rows


def test_rows_pool_sums_and_not_means() -> None:
    plain, fast = summarise(
        [
            record("plain", 0),
            record("plain", 1),
            record("fast", 0, 1.0, new_tokens=10, steps=2, mean_forward_tokens=30.0, accepted={"ngram": 8}),
            record(
                "fast", 1, 2.0, new_tokens=5, steps=4, mean_forward_tokens=3.0,
                accepted={"ngram": 1, "window": 2}, identical_to_plain=False, fallback="a reason",
            ),
        ]
    )  # fmt: skip
    assert plain.speed_ratio == Estimate(1.0, None, None, 2)
    assert (plain.method, plain.identical) == ("plain", 2)
    assert (fast.runs, fast.identical, fast.fallbacks) == (2, 1, {"a reason": 1})
    assert fast.tokens_per_step == 15 / 6
    assert fast.mean_forward_tokens == (60 + 12) / 6
    assert fast.tokens_per_second == 5.0
    assert fast.accepted == {"ngram": 9, "window": 2}
    assert fast.prompts["1"].median == pytest.approx(5 / 2 / 12)


def test_the_time_is_split() -> None:
    plain, fast = summarise(
        [
            record("plain", 0, model_seconds=1.1),  # 0.1 s a step
            drafting("fast", 0, 1.0, prefill_seconds=0.3, model_seconds=0.6, host_seconds=0.2, draft_seconds=0.08),
            drafting("fast", 1, 1.0, prefill_seconds=0.1, model_seconds=0.6, host_seconds=0.2, draft_seconds=0.08),
        ]
    )
    assert fast.first_token_seconds == pytest.approx(0.2)
    assert (fast.model_share, fast.host_share) == (pytest.approx(0.75), pytest.approx(0.25))
    assert fast.drafting_share == pytest.approx(0.1)
    assert fast.draft_microseconds == pytest.approx(20_000)
    assert fast.draft_share == pytest.approx(0.2)
    assert plain.draft_microseconds == 0


def test_a_batch_s_time_is_counted_once() -> None:
    """Two rows of one call of 2 s; the second row left after 2 of the 4 forwards."""
    call = {"batch": 2, "rows": 2, "widths": {8: 4}, "draft_seconds": 0.04, "mean_forward_tokens": 8.0}
    (fast,) = summarise(
        [
            record("fast", 0, 2.0, new_tokens=12, steps=4, **call),
            record("fast", 1, 2.0, new_tokens=6, steps=2, **call),
        ]
    )
    assert fast.tokens_per_second == 9.0
    assert fast.tokens_per_step == 3.0
    assert fast.draft_microseconds == pytest.approx(10_000)  # a forward, not a row's step
    assert fast.speed_ratio is None  # plain decoding did not run


def test_what_became_of_drafts_is_added_up() -> None:
    row = summarise(two_tasks())[1]
    assert row.proposed == {"suffix": 40, "window": 16}
    assert row.verified_by_depth == {1: 12, 2: 8}
    assert row.accepted_by_depth == {1: 10, 2: 6}
    assert row.accepted_lengths == {1: 2, 2: 2, 5: 4}
    assert row.sources == ["suffix", "window"]
    assert row.repeated_4grams == 0.25


def test_the_audit_counts_what_no_near_tie_explains() -> None:
    left = {"identical_to_plain": False}
    plain, fast = summarise(
        [
            record("plain", 0),
            record("fast", 0, parting=parting(0.5, 2.0), **left),
            record("fast", 1, parting=parting(0.25, 3.0), **left),
            record("fast", 2, parting=parting(4.0, 16.0, explained=False), **left),
            record("fast", 3, **left),  # one text is the other's beginning
            record("fast", 4),
        ]
    )
    assert (fast.runs, fast.identical, fast.divergences, fast.unexplained) == (5, 1, 3, 1)
    assert (fast.widest_gap, fast.widest_gap_ulps) == (4.0, 16.0)
    assert (plain.divergences, plain.widest_gap_ulps) == (0, 0.0)


def test_scores_stand_beside_plain_decoding_s() -> None:
    records = [
        *(record("plain", index, score=score) for index, score in enumerate((True, True, False, None, False))),
        *(record("fast", index, score=score) for index, score in enumerate((True, False, True, True, None, True))),
    ]
    plain, fast = summarise(records)
    assert (fast.scored, fast.correct, fast.plain_correct, fast.score_changes) == (3, 2, 2, 2)
    assert (plain.scored, plain.correct, plain.score_changes) == (4, 2, 0)


def test_the_largest_peak_counts_and_none_is_none() -> None:
    plain, fast = summarise(
        [record("plain", 0), record("fast", 0, peak_memory_bytes=5), record("fast", 1, peak_memory_bytes=7)]
    )
    assert (plain.peak_memory_bytes, fast.peak_memory_bytes) == (None, 7)


def test_conditions_are_never_mixed() -> None:
    varied: list[dict[str, Any]] = [{"temperature": 1.0}, {"batch": 4}, {"context": 512}, {"context": 64}, {}]
    records: list[Record] = []
    for place, changes in enumerate(varied, 1):
        records += [record("plain", 0, 6.0, **changes), record("fast", 0, 6.0 / place, **changes)]
    rows = [row for row in summarise(records) if row.method == "fast"]
    assert [row.condition for row in rows] == [
        Condition(0.0, 1, None), Condition(0.0, 1, 64), Condition(0.0, 1, 512), Condition(0.0, 4, None),
        Condition(1.0, 1, None),
    ]  # fmt: skip
    assert [row.speed_ratio.median for row in rows if row.speed_ratio] == [5.0, 4.0, 3.0, 2.0, pytest.approx(1.0)]
    assert list(by_condition(records)) == [row.condition for row in rows]
    assert str(rows[2].condition) == "temperature 0 · batch 1 · 512 tokens of context"


def test_baselines_of_the_registry_are_compared_with_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "compiled", BenchMethod("compiled", plain, baseline=True))
    records = [record("plain", 0, 4.0), record("compiled:level=2", 0, 2.0), record("fast", 0, 1.0)]
    records += [record("lookahead", 0, 1.0), record("auto:budget=8", 0, 1.0)]  # rows too, but no baselines
    fast, compiled = speed_of("fast", records), speed_of("compiled:level=2", records)
    assert fast.baseline_ratios == {"compiled:level=2": Estimate(2.0, None, None, 1)}
    assert fast.speed_ratio == Estimate(4.0, None, None, 1)
    assert compiled.baseline_ratios == {}


def test_a_method_is_compared_with_what_decodes_its_distribution() -> None:
    records = [
        record("plain", 0, 8.0),
        record("alone", 0, 4.0, compared_with="alone"),
        record("fast", 0, 1.0, compared_with="alone", identical_to_plain=False),
    ]
    plain, alone, fast = summarise(records)
    assert (plain.speed_ratio, alone.speed_ratio) == (Estimate(1.0, None, None, 1), Estimate(1.0, None, None, 1))
    assert (fast.speed_ratio, fast.prompts, fast.identical) == (
        Estimate(4.0, None, None, 1), {"0": fast.speed_ratio}, 0,
    )  # fmt: skip
    assert [row.named for row in (plain, alone, fast)] == ["plain", "alone (alone)", "fast (over alone)"]


def test_acceptance_rate_and_mean_accepted_tokens_are_sums_over_sums() -> None:
    """One prompt accepts 1 of 10 places, the other 80 of 90: together 81 of 100. Of six such, draws lie around."""
    some = {"verified_by_depth": {1: 6, 2: 4}, "accepted_by_depth": {1: 1}, "accepted_lengths": {1: 9, 2: 1}}
    most = {"verified_by_depth": {1: 50, 2: 40}, "accepted_by_depth": {1: 44, 2: 36}, "accepted_lengths": {1: 6, 3: 44}}
    plain, fast = summarise([record("plain", 0), drafting("fast", 0, 1.0, **some), drafting("fast", 1, 1.0, **most)])
    assert (plain.acceptance_rate, plain.block_efficiency) == (None, None)
    assert fast.acceptance_rate == Estimate(0.81, None, None, 2)
    assert fast.block_efficiency == Estimate(pytest.approx(24 / 8), None, None, 2)
    assert fast.block_efficiency.median == fast.tokens_per_step  # one meaning everywhere
    (many,) = summarise([drafting("fast", prompt, 1.0, **(some if prompt % 2 else most)) for prompt in range(6)])
    assert many.acceptance_rate is not None
    assert (many.acceptance_rate.median, many.acceptance_rate.n) == (0.81, 6)
    assert not many.acceptance_rate.above(0.81)
    assert many.acceptance_rate.above(0.1)


def test_the_range_of_tokens_per_second_is_of_runs_and_needs_six_prompts() -> None:
    (row,) = summarise([record("plain", prompt, 1 / (1 + prompt)) for prompt in range(11)])  # 12, 24 ... 132 tokens/s
    assert row.tokens_per_second_range == (pytest.approx(24), pytest.approx(120))
    (few,) = summarise([record("plain", prompt, repeat=repeat) for prompt in range(5) for repeat in range(3)])
    assert few.tokens_per_second_range is None


def test_texts_are_averaged_over_prompts_however_often_one_ran() -> None:
    (row,) = summarise(
        [
            record("plain", 0, text_measures={"entropy-1": 1.0}, log_likelihood=-1.0),
            record("plain", 0, repeat=1, text_measures={"entropy-1": 3.0}, log_likelihood=-3.0),
            record("plain", 1, text_measures={"entropy-1": 8.0, "distinct-1": 0.5}),
        ]
    )
    assert row.text_measures == {"entropy-1": 5.0, "distinct-1": 0.5}
    assert row.log_likelihood == -2.0


def test_the_latency_is_a_call_s() -> None:
    (row,) = summarise([record("plain", 0, seconds) for seconds in (1.0, 2.0, 9.0)])
    assert row.latency_seconds == 2.0


def test_a_method_without_a_forward_after_the_prefill_has_a_row() -> None:
    only = record("plain", 0, steps=0, tokens_per_step=None, mean_forward_tokens=None, new_tokens=1, model_seconds=0.0)
    (row,) = summarise([only])
    assert (row.mean_forward_tokens, row.tokens_per_step, row.draft_share) == (0, 0, 0)
