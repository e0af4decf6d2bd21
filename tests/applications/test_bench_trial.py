"""Trials on the model that ships: what is counted, in which order, after which turns, and what texts are compared."""

from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from benchtools import PROMPTS, asked, made, noted, with_plain
from costs import fix_costs
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import lade
from lade.applications.bench.conversation import SEPARATOR
from lade.applications.bench.methods import METHODS, PLAIN
from lade.applications.bench.prompts import Prompt
from lade.applications.bench.records import Record
from lade.applications.bench.references import REFERENCES
from lade.applications.bench.runner import WARMUP_TOKENS, run_task, run_trials
from lade.applications.bench.task import RunOptions, Task, make_task
from lade.applications.bench.timings import Timings
from lade.applications.bench.trial import trials_of
from lade.applications.bench.wrong import wrong_table
from lade.memory.warm import warming as warm

pytestmark = pytest.mark.usefixtures("one_thread")

Story = tuple[PreTrainedModel, PreTrainedTokenizerBase]
Calls = list[tuple[str, dict[str, Any]]]
WRONG = "wrong:reference=equal"
OPTIONS = RunOptions(max_new_tokens=24, eos=(1, 2))
QUICK = RunOptions(max_new_tokens=4, warmup=0)


def of(records: list[Record], method: str) -> list[Record]:
    return [record for record in records if record.method == method]


def task_of(story: Story, options: RunOptions, *prompts: Prompt, **kwargs: Any) -> Task:
    return make_task("hand", prompts or PROMPTS[:2], *story, options, **kwargs)


# What is counted


def test_plain_decoding_takes_a_forward_per_token(shipped: Story) -> None:
    for record in run_task(shipped[0], asked(PLAIN), task_of(shipped, OPTIONS), OPTIONS):
        assert record.steps == record.new_tokens - 1 == 23
        assert (record.mean_forward_tokens, record.widths, record.accepted_lengths) == (1, {1: 23}, {1: 23})
        assert (record.identical_to_plain, record.accepted, record.fallback) == (True, {}, None)
        assert 0 < record.prefill_seconds < record.seconds
        assert record.peak_memory_bytes is None


def test_texts_are_measured_in_tokens_or_words(shipped: Story) -> None:
    found = {}
    for unit in ("tokens", "words"):
        options = replace(OPTIONS, text_units=unit)
        (record, _) = run_task(shipped[0], asked(PLAIN), task_of(shipped, options), options)
        found[unit] = record.text_measures["distinct-1"] * 24
    assert found["tokens"] == pytest.approx(round(found["tokens"]))
    assert found["words"] != found["tokens"]


def test_nothing_is_told_of_the_steps_of_a_method_that_tells_nothing(shipped: Story) -> None:
    """It may draft, so that one token in every forward is an accident, and counting these alone would be a bias."""
    records = list(run_task(shipped[0], with_plain(made(plain_again)), task_of(shipped, QUICK), QUICK))
    assert [record.accepted_lengths for record in of(records, PLAIN)] == [{1: 3}] * 2
    assert [(record.steps, record.accepted_lengths) for record in of(records, "made")] == [(3, {})] * 2


def test_lookahead_is_counted_from_outside_as_it_counts_itself(shipped: Story) -> None:
    seen = 0
    for record in run_task(shipped[0], asked("lookahead"), task_of(shipped, OPTIONS), OPTIONS):
        if record.method == "lookahead":
            seen += 1
            stats = lade.last_stats()
            assert stats
            assert record.identical_to_plain
            assert record.steps < record.new_tokens - 1
            assert (record.steps, record.mean_forward_tokens) == (stats.steps, pytest.approx(stats.mean_forward_tokens))
            assert (record.widths, record.accepted_lengths) == (stats.widths, stats.accepted_lengths)
            assert sum(record.accepted.values()) == sum(record.accepted_by_depth.values()) == stats.accepted_tokens > 0
            assert record.verified_by_depth == stats.verified_by_depth
    assert seen == 2


def test_rows_of_a_batch_share_the_call_and_count_their_own(shipped: Story) -> None:
    options = RunOptions(max_new_tokens=16, warmup=0, eos=(1, 2))
    task = task_of(shipped, options, *PROMPTS)
    together = list(run_task(shipped[0], asked("lookahead"), task, replace(options, batch=2)))
    alone = list(run_task(shipped[0], asked("lookahead"), task, options))
    assert [(record.rows, record.batch) for record in of(together, PLAIN)] == [(2, 2), (2, 2), (1, 2), (1, 2)]
    for method in (PLAIN, "lookahead"):
        one, other = of(together, method)[:2]
        shared = ("seconds", "prefill_seconds", "model_seconds", "host_seconds", "widths", "draft_seconds")
        assert all(getattr(one, name) == getattr(other, name) for name in shared)
        assert one.share == one.seconds / 2
        for mine, its in zip(of(together, method), of(alone, method), strict=True):
            assert mine.identical_to_plain
            names = ("prompt_id", "turn", "prompt_tokens", "new_tokens", "steps", "tokens_per_step", "accepted",
                     "proposed", "accepted_lengths", "verified_by_depth", "repeated_4grams")  # fmt: skip
            assert [getattr(mine, name) for name in names] == [getattr(its, name) for name in names]


def test_a_fallback_is_told(shipped: Story) -> None:
    def decode(model: PreTrainedModel, **arguments: Any) -> Tensor:
        with lade.lookahead(model, lade.LookaheadConfig()):
            return model.generate(**arguments, use_cache=False)

    contenders = with_plain(made(decode, has_stats=True))
    with pytest.warns(lade.FallbackWarning):
        records = list(run_task(shipped[0], contenders, task_of(shipped, QUICK), QUICK))
    assert all("use_cache" in (record.fallback or "") for record in of(records, "made"))
    assert all(record.accepted_lengths == {} for record in of(records, "made"))  # nothing is told of its steps


# Order and seeds


def test_contenders_take_turns_and_a_different_text_is_seen(shipped: Story) -> None:
    order: list[str] = []

    def shortened(model: PreTrainedModel, **arguments: Any) -> Tensor:
        order.append("short")
        return model.generate(**arguments)[:, :-1]

    def whole(model: PreTrainedModel, **arguments: Any) -> Tensor:
        order.append(PLAIN)
        return model.generate(**arguments)

    options = RunOptions(max_new_tokens=4, repeats=2, warmup=1)
    contenders = [made(whole, PLAIN), made(shortened, "short")]
    records = list(run_task(shipped[0], contenders, task_of(shipped, options, PROMPTS[0]), options))
    assert order == [PLAIN, "short", PLAIN, "short", "short", PLAIN]  # warm-up, first repeat, second repeat
    assert [(record.method, record.identical_to_plain) for record in records] == [(PLAIN, True), ("short", False)] * 2
    assert all(record.parting is None for record in records)  # one text is the other's beginning


def test_sampled_runs_of_one_trial_share_a_seed_and_repeats_do_not(shipped: Story) -> None:
    options = RunOptions(max_new_tokens=12, temperature=1.0, repeats=2, seed=5)
    records = list(run_task(shipped[0], asked("lookahead"), task_of(shipped, options), options))
    assert [record.seed for record in records] == [5, 5, 6, 6, 7, 7, 8, 8]
    assert all(record.identical_to_plain and record.parting is None for record in records)
    assert len({record.repeated_4grams for record in records} | {record.steps for record in records}) > 1


def test_warming_up_takes_the_longest_prompt_and_the_whole_length_where_that_matters(shipped: Story) -> None:
    calls: Calls = []
    quick, slow = noted(calls, [PLAIN, "settling"])
    settling = made(slow.decode, "settling", full_warmup=True)
    options = RunOptions(max_new_tokens=40, warmup=1, batch=2)
    task = task_of(shipped, options, *PROMPTS)
    trials = trials_of(task, options)
    list(run_trials(shipped[0], [quick, settling], trials[:1], Timings()))
    lengths = {label: arguments["max_new_tokens"] for label, arguments in calls[:2]}
    assert lengths == {PLAIN: WARMUP_TOKENS, "settling": 40}
    assert [arguments["input_ids"].shape for _, arguments in calls[:2]] == [(2, task.longest)] * 2
    later = max(arguments["input_ids"].shape[1] for _, arguments in calls[2:])
    assert later <= task.longest


def test_each_task_and_point_of_the_grid_is_warmed_up(shipped: Story) -> None:
    calls: Calls = []
    options = RunOptions(max_new_tokens=2, warmup=1)
    sampled = RunOptions(max_new_tokens=2, warmup=1, temperature=1.0)
    task = task_of(shipped, options)
    list(
        run_trials(shipped[0], noted(calls, [PLAIN]), [*trials_of(task, options), *trials_of(task, sampled)], Timings())
    )
    assert len(calls) == (1 + 2) * 2
    assert [arguments["do_sample"] for _, arguments in calls] == [False] * 3 + [True] * 3


def test_contenders_that_decode_no_batches_are_left_out_of_them(shipped: Story) -> None:
    options = RunOptions(max_new_tokens=2, warmup=1, batch=2)
    records = list(run_task(shipped[0], asked("default"), task_of(shipped, options), options))
    assert {record.method for record in records} == {PLAIN, "lookahead", "auto"}


# Conversations


def test_later_turns_follow_plain_decoding_s_answers(shipped: Story) -> None:
    model, tokenizer = shipped
    calls: Calls = []
    options = RunOptions(max_new_tokens=6, warmup=0, batch=2)

    def different(model: PreTrainedModel, **arguments: Any) -> Tensor:
        sequences = model.generate(**arguments)
        return torch.cat([sequences[:, :-1], sequences.new_full((len(sequences), 1), 77)], dim=1)

    contenders = [*noted(calls, [PLAIN]), made(different)]
    records = list(run_task(model, contenders, task_of(shipped, options, *PROMPTS[1:]), options))
    assert [(record.prompt_id, record.turn, record.rows) for record in of(records, PLAIN)] == [
        (1, 0, 2), ("two", 0, 2), ("two", 1, 1),
    ]  # fmt: skip
    first, second = calls[0][1], calls[1][1]
    answer = model.generate(**{**first, "max_new_tokens": 6})[1, first["input_ids"].shape[1] :].tolist()
    expected = [
        *tokenizer(PROMPTS[2].turns[0]).input_ids, *answer,
        *tokenizer(SEPARATOR + PROMPTS[2].turns[1], add_special_tokens=False).input_ids,
    ]  # fmt: skip
    assert second["input_ids"].tolist() == [expected]
    assert all(record.category == ("long" if record.prompt_id == "two" else "") for record in records)
    assert of(records, "made")[2].prompt_tokens == of(records, PLAIN)[2].prompt_tokens == len(expected)


# Audit and scores


def wrong_in_the_last_row(model: PreTrainedModel, **arguments: Any) -> Tensor:
    """Plain decoding, but for the sixth new token of one row."""
    sequences = model.generate(**arguments)
    place = arguments["input_ids"].shape[1] + 5
    sequences[-1, place] = (sequences[-1, place] + 1) % model.config.vocab_size
    return sequences


def test_a_text_that_parts_is_audited(shipped: Story) -> None:
    """A near-tie is told from a wrong token, at the position where the texts part, in a batch as well as alone."""
    found = {}
    for batch in (1, 2):
        options = RunOptions(max_new_tokens=12, warmup=0, batch=batch)
        task = task_of(shipped, options, *PROMPTS[1::-1])
        records = list(run_task(shipped[0], with_plain(made(wrong_in_the_last_row)), task, options))
        assert all(record.parting is None for record in of(records, PLAIN))
        others = of(records, "made")
        assert [record.identical_to_plain for record in others] == [batch == 2, False]
        assert (others[0].parting is None) == (batch == 2)
        assert others[1].parting is not None
        found[batch] = others[1].parting
        assert found[batch]["index"] == others[1].prompt_tokens + 5
    assert found[1]["tokens"][1] == (found[1]["tokens"][0] + 1) % shipped[0].config.vocab_size
    assert not found[1]["explained"]
    assert found[1]["ulps"] == found[1]["gap"] / found[1]["ulp"] > 4
    assert found[2] == found[1]


def test_sampled_texts_may_part_without_an_audit(shipped: Story) -> None:
    options = RunOptions(max_new_tokens=12, warmup=0, temperature=1.0)
    timings = Timings()
    trials = trials_of(task_of(shipped, options), options)
    contenders = with_plain(made(wrong_in_the_last_row))
    records = [record for found in run_trials(shipped[0], contenders, trials, timings) for record in found]
    assert [record.identical_to_plain for record in of(records, "made")] == [False, False]
    assert all(record.parting is None for record in records)
    assert timings.seconds["audit"] == 0


def test_answers_are_scored_once_each_behind_the_last_turn(shipped: Story) -> None:
    model, tokenizer = shipped
    asked_for: list[tuple[str | int, str]] = []

    def score(prompt: Prompt, text: str) -> bool | None:
        asked_for.append((prompt.id, text))
        return None if prompt.id == 1 else len(text) > 3

    def short(model: PreTrainedModel, **arguments: Any) -> Tensor:
        return model.generate(**arguments)[:, : arguments["input_ids"].shape[1] + 1]

    timings = Timings()
    trials = trials_of(task_of(shipped, QUICK, *PROMPTS, score=score), QUICK)
    contenders = with_plain(made(plain_again), made(short, "short"))
    records = [record for found in run_trials(model, contenders, trials, timings) for record in found]
    assert [prompt_id for prompt_id, _ in asked_for] == [0, 0, 1, 1, "two", "two"]  # two of three texts are the same
    assert {(record.prompt_id, record.turn): record.score for record in of(records, "made")} == {
        (0, 0): True, (1, 0): None, ("two", 0): None, ("two", 1): True,
    }  # fmt: skip
    assert of(records, "short")[0].score is False
    assert asked_for[0][1] == tokenizer.decode(
        model.generate(torch.tensor([tokenizer(PROMPTS[0].text).input_ids]), max_new_tokens=4, do_sample=False)[0, -4:],
        skip_special_tokens=True,
    )
    assert timings.seconds["score"] > 0


def plain_again(model: PreTrainedModel, **arguments: Any) -> Tensor:
    return model.generate(**arguments)


# Reference texts


def test_a_reference_that_is_the_answer_is_followed_and_a_useless_one_is_not(shipped: Story) -> None:
    methods = asked("auto:reference=equal,auto:reference=useless,auto", budget=16, adapt=False)
    for record in run_task(shipped[0], methods, task_of(shipped, OPTIONS), OPTIONS):
        assert record.identical_to_plain
        if record.method == "auto:reference=equal":
            assert record.steps == 2  # 1 token from the prefill, 16 from the first step, 7 from the second
            assert record.accepted["reference"] == 21
        else:
            assert "reference" not in record.accepted


def test_rows_of_a_batch_are_given_references_of_their_own(shipped: Story) -> None:
    options = RunOptions(max_new_tokens=24, eos=(1, 2), batch=2)
    methods = asked("auto:reference=equal", budget=16, adapt=False)
    records = of(list(run_task(shipped[0], methods, task_of(shipped, options), options)), "auto:reference=equal")
    assert [(record.steps, record.accepted["reference"]) for record in records] == [(2, 21), (2, 21)]


@pytest.mark.parametrize("seed", [0, 3])
def test_useless_references_are_random_and_the_same_for_a_seed(seed: int) -> None:
    text = REFERENCES["useless"](range(100), 512, seed)
    assert text == REFERENCES["useless"](range(100), 512, seed) != REFERENCES["useless"](range(100), 512, seed + 1)
    assert len(text) == 100
    assert 0 <= min(text) < max(text) < 512
    assert REFERENCES["equal"]((4, 2), 512, seed) == [4, 2]


# Wrong drafts


@pytest.mark.parametrize("batch", [1, 2])
def test_wrong_drafts_are_never_accepted_and_soon_given_up(
    shipped: Story, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fix_costs(monkeypatch)
    options = RunOptions(max_new_tokens=96, eos=(1, 2), batch=batch, warmup=0)
    task = task_of(shipped, options, *PROMPTS[:batch])
    records = of(list(run_task(shipped[0], asked(WRONG), task, options)), WRONG)
    assert len(records) == batch
    for record in records:
        assert record.identical_to_plain
        assert record.accepted == {}
        assert record.steps == record.new_tokens - 1
        assert record.mean_forward_tokens < 3
    assert sum(record.proposed.get("warm", 0) for record in records) > 0


def test_wrong_tokens_are_those_that_the_text_does_not_have() -> None:
    table = wrong_table((3, 5, 3), 16)
    for token in range(16):
        tokens, probabilities = table.entry(token)
        assert len(set(tokens)) == len(probabilities) == 8
        assert not {3, 5} & set(tokens)
    assert sum(table.entry(7)[1]) == pytest.approx(1.0)


@pytest.mark.parametrize("reference", ["useless", None])
def test_what_is_wrong_must_be_known(reference: str | None) -> None:
    with pytest.raises(ValueError, match="reference"):
        asked("wrong", reference=reference)


def test_a_cold_row_loads_no_warm_table(shipped: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where the cache folder holds one."""

    def run(row: str) -> list[Record]:
        return list(run_task(shipped[0], asked(row), task_of(shipped, QUICK), QUICK))

    monkeypatch.setattr(warm, "cached", Mock(side_effect=LookupError("a table was looked for")))
    rows = [name for name, method in METHODS.items() if method.has_stats and not method.needs]
    assert {"auto", "recycled", "lookahead"} <= set(rows)
    assert all(record.warm_seconds is None for row in rows for record in run(row))
    with pytest.raises(LookupError, match="a table was looked for"):
        run("auto:warm=1")
