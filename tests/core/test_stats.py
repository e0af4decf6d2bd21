"""What a call leaves behind: figures that add up, per thread; a history; a log that is whole or not there."""

import contextvars
import dataclasses
import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from families import BRANCHABLE
from tiny import tiny_model, words
from transformers import PreTrainedModel

import lade
from lade.core import stats as stats_module
from lade.core.request import Verdict
from lade.core.stats import Clock, GenerationStats, record
from lade.core.tally import Tally
from lade.core.tree import TreeBuilder

LLAMA = next(family for family in BRANCHABLE if family.name == "llama")
GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 40}


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return tiny_model(LLAMA, "sdpa")


@pytest.fixture(autouse=True)
def history(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty one for every test."""
    monkeypatch.setattr(stats_module, "_history", type(stats_module._history)(maxlen=stats_module.HISTORY))


def stats_of(model: PreTrainedModel, *lengths: int, **kwargs: Any) -> GenerationStats:
    config = lade.LookaheadConfig(mode="lookahead", ngram=4, window=5, guesses=5, pool_from_prompt=True)
    lade.generate(model, **words(*lengths), **{"config": config, **GREEDY, **kwargs})
    stats = lade.last_stats()
    assert stats is not None
    return stats


# One call


@pytest.mark.parametrize("lengths", [(9,), (9, 4, 6)], ids=str)
@pytest.mark.parametrize("sample", [True, False])
def test_figures_add_up(lengths: tuple[int, ...], sample: bool, model: PreTrainedModel) -> None:
    """Every row has one token from the prefill; every forward of a row gives one and what it accepted."""
    stats = stats_of(model, *lengths, do_sample=sample, temperature=0.4 if sample else None)
    assert stats.fallback is None
    assert stats.rows == len(lengths)
    assert stats.new_tokens == 40 * len(lengths)
    assert stats.new_tokens == stats.rows + stats.steps + stats.accepted_tokens
    assert stats.accepted_tokens == sum(stats.accepted.values()) == sum(stats.accepted_by_depth.values()) > 0
    assert sum(stats.accepted_lengths.values()) == stats.steps
    assert stats.new_tokens == stats.rows + sum(n * steps for n, steps in stats.accepted_lengths.items())
    assert len(stats.by_row) == (0 if stats.rows == 1 else stats.rows)
    assert set(stats.accepted) <= {"ngram", "window"}
    assert stats.tokens_per_step == stats.new_tokens / stats.steps
    assert stats.mean_forward_tokens == stats.forward_tokens / stats.steps
    assert 1 < stats.mean_forward_tokens <= 3 * 5 + 3 * 5
    assert min(stats.prefill_seconds, stats.model_seconds, stats.host_seconds) > 0


def test_rows_of_a_batch_have_their_own_figures(model: PreTrainedModel) -> None:
    """Each row's are those of the row decoded alone, and together they are the call's."""
    lengths = (9, 4, 6)
    whole = stats_of(model, *lengths)
    assert sum(row.steps for row in whole.by_row) == whole.steps
    for name in ("proposed", "verified", "accepted", "verified_by_depth", "accepted_by_depth", "accepted_lengths"):
        rows = [Counter(getattr(row, name)) for row in whole.by_row]
        assert dict(sum(rows, Counter())) == getattr(whole, name)
    batch = words(*lengths)
    for row, length in enumerate(lengths):
        alone = {name: values[row : row + 1, -length:] for name, values in batch.items()}
        config = lade.LookaheadConfig(mode="lookahead", ngram=4, window=5, guesses=5, pool_from_prompt=True)
        lade.generate(model, **alone, config=config, **GREEDY)
        stats = lade.last_stats()
        assert stats is not None
        assert (stats.steps, stats.accepted) == (whole.by_row[row].steps, whole.by_row[row].accepted)


def test_end_tokens_count_once(model: PreTrainedModel) -> None:
    text = model.generate(**words(9), **GREEDY)[0, 9:].tolist()
    stats = stats_of(model, 9, eos_token_id=text[20])
    assert stats.new_tokens == text.index(text[20]) + 1
    assert stats.new_tokens == 1 + stats.steps + stats.accepted_tokens


def test_a_call_without_a_step(model: PreTrainedModel) -> None:
    stats = stats_of(model, 9, max_new_tokens=1)
    assert (stats.new_tokens, stats.steps, stats.forward_tokens, stats.accepted) == (1, 0, 0, {})
    assert stats.tokens_per_step == stats.mean_forward_tokens == 0


def test_plain_decoding_says_so(model: PreTrainedModel) -> None:
    with pytest.warns(lade.FallbackWarning, match="use_cache"):
        stats = stats_of(model, 9, 4, use_cache=False)
    assert "use_cache" in (stats.fallback or "")
    assert (stats.rows, stats.new_tokens, stats.steps) == (2, 80, 0)
    assert "use_cache" in str(stats)
    assert lade.log_history()[-1] is stats


def test_debug_prints_one_line(model: PreTrainedModel, capsys: pytest.CaptureFixture[str]) -> None:
    stats = stats_of(model, 9, config=lade.LookaheadConfig(mode="lookahead", window=5, debug=1))
    assert capsys.readouterr().out == f"{stats}\n"
    assert f"40 tokens in {stats.steps} steps" in str(stats)
    stats_of(model, 9, config=lade.LookaheadConfig(mode="lookahead", window=5))
    assert capsys.readouterr().out == ""


def test_debug_tells_of_plain_decoding_too(model: PreTrainedModel, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.warns(lade.FallbackWarning):
        stats = stats_of(model, 9, config=lade.LookaheadConfig(mode="lookahead", window=5, debug=1), use_cache=False)
    assert capsys.readouterr().out == f"{stats}\n"


def test_stats_are_frozen(model: PreTrainedModel) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        stats_of(model, 9).steps = 3  # type: ignore[misc]


def test_clock_counts_rows_of_a_forward() -> None:
    clock = Clock()
    with clock.prefill():
        pass
    for tokens, rows, width in ((30, 3, 12), (10, 2, 5), (15, 3, 5)):
        with clock.forward(tokens, rows, width):
            pass
    tallies = [Tally(), Tally(), Tally()]
    builder = TreeBuilder(1)
    builder.add_path(0, [2, 3], "ngram")
    tallies[1].add(builder.build(), Verdict([0, 1, 2], [2, 3, 4]))
    stats = clock.stop(tallies, new_tokens=10, decisions={"as before": 3})
    assert (stats.steps, stats.forward_tokens, stats.accepted) == (8, 55, {"ngram": 2})
    assert (stats.widths, stats.decisions) == ({5: 2, 12: 1}, {"as before": 3})
    assert stats.host_seconds >= 0


# Threads


def test_threads_have_their_own_settings_stats_and_text(model: PreTrainedModel) -> None:
    """Four threads decode different prompts with different settings, at once; each sees what it would see alone."""
    configs = [lade.LookaheadConfig(mode="lookahead", ngram=n, window=w) for n, w in ((2, 1), (3, 4), (4, 8), (5, 12))]

    def run(index: int) -> tuple[list[int], tuple[Any, ...]]:
        prompt = words(5 + index, seed=index)
        with lade.lookahead(model, configs[index]):
            text = model.generate(**prompt, **GREEDY)
        stats = lade.last_stats()
        assert stats is not None
        return text[0].tolist(), (stats.new_tokens, stats.steps, stats.forward_tokens, stats.accepted)

    def plain(index: int) -> list[int]:
        return model.generate(**words(5 + index, seed=index), **GREEDY)[0].tolist()

    alone = [run(index) for index in range(4)]
    assert [text for text, _ in alone] == [plain(index) for index in range(4)]
    assert len({figures[2] for _, figures in alone}) == 4
    found: dict[tuple[int, int], Any] = {}
    start = threading.Barrier(4)

    def work(index: int) -> None:
        assert lade.last_stats() is None
        start.wait()
        for repeat in range(3):
            found[index, repeat] = run(index)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {(index, repeat): alone[index] for index in range(4) for repeat in range(3)}


def test_stats_belong_to_a_context() -> None:
    """As tasks of an event loop have it: what one records, another does not see."""
    mine, theirs = GenerationStats(rows=1, new_tokens=1), GenerationStats(rows=2, new_tokens=2)
    record(mine)
    contextvars.copy_context().run(record, theirs)
    assert lade.last_stats() is mine
    assert lade.log_history() == [mine, theirs]


# History and log


def test_history_is_in_order_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats_module, "_history", type(stats_module._history)(maxlen=3))
    for rows in range(1, 6):
        record(GenerationStats(rows=rows, new_tokens=0))
    assert [stats.rows for stats in lade.log_history()] == [3, 4, 5]
    lade.log_history().clear()
    assert len(lade.log_history()) == 3


def test_log_is_json_lines(model: PreTrainedModel, tmp_path: Path) -> None:
    calls = [stats_of(model, 9), stats_of(model, 9, max_new_tokens=3)]
    lade.save_log(tmp_path / "log.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    for stats, line in zip(calls, lines, strict=True):
        derived = ("tokens_per_step", "mean_forward_tokens", "accepted_tokens", "acceptance_rate")
        whole = dataclasses.asdict(stats) | {name: getattr(stats, name) for name in derived}
        assert line == json.loads(json.dumps(whole))  # JSON knows no keys but text


def test_log_replaces_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("old\n" * 100)
    record(GenerationStats(rows=1, new_tokens=5))
    lade.save_log(str(path))
    assert [json.loads(line)["new_tokens"] for line in path.read_text().splitlines()] == [5]
    assert [entry.name for entry in tmp_path.iterdir()] == ["log.jsonl"]


@pytest.mark.parametrize("broken", ["open", "replace"])
def test_a_failed_log_leaves_the_old_one(broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full, half way or at the end: the old log stands and nothing lies about."""
    path = tmp_path / "log.jsonl"
    path.write_text("old")
    record(GenerationStats(rows=1, new_tokens=5))

    def fails(self: Path, *args: Any) -> None:
        self.touch()
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(Path, broken, fails)
        with pytest.raises(OSError, match="no space"):
            lade.save_log(path)
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["log.jsonl"]


def test_an_empty_log(tmp_path: Path) -> None:
    lade.save_log(tmp_path / "log.jsonl")
    assert (tmp_path / "log.jsonl").read_text() == ""
