"""The proposer: what it refuses, how far it drafts, and that drafts stop where they do not pay."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import vllm_engine
from vllm_engine import LONGEST, Engine, Row, config, loaded

from lade.memory.corpusfile import Corpus
from lade.pace.cost import Costs, StepCost
from lade.pace.knots import KNOTS
from lade.pace.pace import Pace
from lade.pace.shared import SharedCost
from lade.vllm import Proposer, proposer
from lade.vllm.options import VersionError


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    vllm_engine.install(monkeypatch)


def after(text: Sequence[int]) -> int:
    """Tokens in a circle."""
    return (text[-1] + 1) % 8


@pytest.mark.parametrize("version", ["0.31.9", "0.33.0", "0.33.0rc1", "1.0"])
def test_versions_that_are_not_tested_are_refused(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    vllm_engine.install(monkeypatch, version)
    with pytest.raises(VersionError, match=rf"tested with vLLM 0.32 up to, but not including, 0.33; this is {version}"):
        Proposer(config())


@pytest.mark.parametrize("version", ["0.32.0", "0.32.0+cpu", "0.32.4"])
def test_versions_that_are_tested_are_accepted(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    vllm_engine.install(monkeypatch, version)
    Proposer(config())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"adapt": 2}, r"additional_config\['lade'\]\['adapt'\] must be True, False, 1 or 0, got 2"),
        ({"warm_table": 1}, r"\['warm_table'\] must be a path, as text or as pathlib.Path, got 1"),
        ({"corpus": 1}, r"\['corpus'\] must be a path, as text or as pathlib.Path, got 1"),
        (
            {"warm": "off"},
            r"additional_config\['lade'\] must be an object with the names adapt, warm_table, corpus, got",
        ),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Proposer(config(**options))


def test_wrong_settings_of_vllm_are_named() -> None:
    settings = config()
    settings.scheduler_config.async_scheduling = True
    with pytest.raises(ValueError, match="async_scheduling must be off"):
        Proposer(settings)
    with pytest.raises(ValueError, match="num_speculative_tokens must be at least 1, got 0"):
        Proposer(config(tokens=0))


def test_a_file_that_is_no_table_is_named(tmp_path: Any) -> None:
    path = tmp_path / "table.safetensors"
    with pytest.raises(ValueError, match=r"table\.safetensors: cannot be read"):
        loaded(config(warm_table=str(path)))


def test_a_corpus_is_drafted_from(tmp_path: Any) -> None:
    path = tmp_path / "corpus.safetensors"
    with pytest.raises(FileNotFoundError, match=r"corpus='.*': there is no such file"):
        loaded(config(corpus=str(path)))
    Corpus([[5, 3, 9, 4, 8]] * 4).save(path)
    engine = Engine(config(corpus=str(path)), after)
    engine.rows = [Row([0, 5, 3])]
    engine.proposer.propose([[3]], np.array([3]), np.array([[0, 5, 3, 0]], np.int32))
    (known,) = engine.proposer._requests.known
    assert known.draft.tokens == [3, 9, 4, 8]


def test_other_processes_of_a_tensor_parallel_group_draft_nothing() -> None:
    settings = config()
    settings.parallel_config.rank, settings.parallel_config.tensor_parallel_size = 3, 2
    idle, model = loaded(settings)
    model.compute_logits(torch.zeros(1, 32))
    assert idle.propose([[1], []], np.array([3, 2]), np.ones((2, 9), np.int32)) == [[], []]
    assert not idle._requests.known
    settings.parallel_config.rank = 2  # the first one of the last stage
    assert Engine(settings, after).proposer._drafts


def test_drafts_end_where_the_longest_text_ends() -> None:
    engine = Engine(config(tokens=6), after)
    engine.rows = [Row([0])]
    longest = 0
    while len(engine.rows[0].text) < LONGEST - 1:
        engine.step()
        (row,) = engine.rows
        longest = max(longest, len(row.drafted))
        assert len(row.text) + len(row.drafted) < LONGEST or not row.drafted
    assert longest == 6


def test_a_token_that_the_model_cannot_read_ends_a_draft() -> None:
    """A prompt may hold such ids: those of images."""
    for vocabulary, expected in ((128, [4, 99, 5]), (99, [4]), (32, [4])):
        engine = Engine(config(tokens=3, vocabulary=vocabulary), lambda text: 3, vocabulary)
        engine.rows = [Row([1, 2, 3, 4, 99, 5, 6, 7, 1, 2])]
        engine.step()
        assert engine.rows[0].drafted == expected


def test_two_requests_learn_nothing_of_each_other() -> None:
    engine = Engine(config(), after)
    engine.rows = [Row([0]), Row([0, 1])]
    engine.step()
    pools = [each.request.state.memory.pool for each in engine.proposer._requests.known if each.request]
    assert len(set(map(id, pools))) == 2


class Clock:
    """Seconds that the engine's steps take, by their tokens."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def paced(patch: pytest.MonkeyPatch, costs: Costs) -> tuple[Engine, SharedCost, Clock]:
    """An engine with these costs of steps."""
    clock, shared = Clock(), SharedCost(StepCost(costs), lambda costs: None)
    patch.setattr(proposer, "Pace", partial(Pace, now=clock))
    patch.setattr(proposer, "shared_cost", lambda settings, version: shared)
    return Engine(config(tokens=5, adapt=True), after), shared, clock


@pytest.mark.parametrize(("rows", "pays"), [(1, True), (6, False)])
def test_drafts_stop_where_the_whole_batch_gains_nothing(
    rows: int, pays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of one row cost the same whatever their tokens, those of eight rows more than the tokens could bring."""
    steep = [math.log(2 * knot) for knot in KNOTS[1:]]
    engine, _, _ = paced(monkeypatch, {(0, 7): [0.0] * len(steep), (3, 7): steep})
    engine.rows = [Row([start]) for start in range(rows)]
    for _ in range(12):
        engine.step()
    assert bool(sum(row.accepted for row in engine.rows)) == pays


def test_steps_are_timed_with_the_tokens_of_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, shared, clock = paced(monkeypatch, {})
    timed: list[tuple[int, int, float]] = []
    monkeypatch.setattr(
        shared, "observe", lambda tokens, context, rows, seconds, first: timed.append((tokens, rows, round(seconds)))
    )
    engine.rows = [Row([start]) for start in range(3)]
    expected = []
    for _ in range(10):
        engine.step()
        tokens = 3 + sum(len(row.drafted) for row in engine.rows)
        clock.now += tokens
        expected.append((tokens, 3, tokens))
    assert any(tokens > 3 for tokens, _, _ in timed)
    assert set(timed) <= set(expected[2:])


def test_steps_of_prompts_alone_draft_and_time_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _, _ = paced(monkeypatch, {})
    for rows in ([Row([0])], [Row([3], waits=2)]):
        engine.rows = rows
        for _ in range(4):
            engine.step()
    assert engine.rows[0].steps == 2


def test_only_steps_that_computed_what_they_were_given_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _, _ = paced(monkeypatch, {(rows, 7): [0.0] * (len(KNOTS) - 1) for rows in range(3)})
    drafter, paused = engine.proposer._drafter, []
    monkeypatch.setattr(drafter, "pause", lambda: paused.append(engine.rows[:]))
    engine.rows = [Row([0]), Row([3])]
    for _ in range(9):
        engine.step()
    assert not paused
    engine.rows.append(Row([5]))
    engine.step()  # a prompt
    assert len(paused) == 1
    engine.rows.pop(0)
    engine.step()  # fewer rows than there were drafts for
    assert len(paused) == 2
    engine.step()
    drafted, before = any(row.drafted for row in engine.rows), len(paused)
    engine.step(lambda row: 0)  # no draft is computed
    assert len(paused) == before + drafted
    engine.step(calls=2)
    assert len(paused) == before + drafted + 1
