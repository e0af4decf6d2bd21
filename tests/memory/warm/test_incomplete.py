"""Incomplete warm tables: stored early, usable at once, and replaced by the complete one."""

import copy
import dataclasses
from pathlib import Path

import pytest
import torch
from families import BY_NAME, VOCAB
from tiny import tiny_model, words
from transformers import PreTrainedModel

import lade
from lade.base.compiled import viewed
from lade.memory.backoff import backoff, find_warm
from lade.memory.context import NOTHING
from lade.memory.warm import table as warmtable
from lade.memory.warm import texts as warmtexts
from lade.memory.warm import warming as warm
from lade.memory.warmtable import no_contexts

FIRST_TEXTS, FIRST = 40 * 8, VOCAB // warmtable.FIRST
pytestmark = pytest.mark.usefixtures("table_folder", "short_texts", "early")


@pytest.fixture
def early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are stored however little time has passed; 40 entries in a forward, 40 texts side by side."""
    monkeypatch.setattr(warm, "PATIENCE", 0.0)
    monkeypatch.setattr(warmtable, "LOGITS", 40 * VOCAB)


def fresh() -> PreTrainedModel:
    return copy.deepcopy(tiny_model(BY_NAME["llama"], "sdpa"))


def interrupted(model: PreTrainedModel, at: int, top: int = 16) -> None:
    def stop(done: int, total: int) -> None:
        if done >= at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        warm.warm_up(model, top=top, progress=stop)


def test_the_first_texts_and_the_most_frequent_entries_are_usable_early() -> None:
    interrupted(fresh(), FIRST_TEXTS + FIRST + 1)
    table, whole = warm.cached(fresh()), warm.compute(fresh())
    assert table is not None
    assert not table.complete
    known = table.probabilities[:, 0] > 0
    assert known.sum() == FIRST
    assert torch.equal(table.tokens[known], whole.tokens[known])
    assert torch.equal(table.probabilities[known], whole.probabilities[known])
    assert 0 < len(table.contexts.endings) < len(whole.contexts.endings)


def test_it_grows_and_becomes_complete() -> None:
    model = fresh()
    interrupted(model, FIRST_TEXTS + FIRST + 1)
    first = warm.cached(model)
    interrupted(model, FIRST + warmtexts.ROWS * 8 + 1)
    second = warm.cached(model)
    assert first is not None
    assert second is not None
    assert len(second.contexts.endings) > len(first.contexts.endings)
    assert not second.complete
    table = warm.warm_up(model)
    assert table.complete
    assert warm.cached(model) is table is warm.warm_up(model)
    assert (table.probabilities > 0).all()


def test_a_process_with_an_incomplete_table_finds_the_complete_one() -> None:
    model, other = fresh(), fresh()
    interrupted(model, FIRST_TEXTS + FIRST + 1)
    old = warm.cached(other)
    assert old is not None
    assert not old.complete
    table = warm.warm_up(model)
    assert warm.cached(other).digest == table.digest != old.digest


def test_a_complete_table_is_never_replaced_by_an_incomplete_one() -> None:
    model = fresh()
    table = warm.warm_up(model, top=4)
    interrupted(model, FIRST + warmtexts.ROWS * 8 + 1, top=8)
    assert warm.cached(model) is table
    assert warm.cached(fresh()).digest == table.digest


def test_without_patience_for_it_nothing_incomplete_is_stored(
    monkeypatch: pytest.MonkeyPatch, table_folder: Path
) -> None:
    monkeypatch.setattr(warm, "PATIENCE", 1e9)
    interrupted(fresh(), FIRST + warmtexts.ROWS * 8 + 1)
    assert [path.name.split("-")[0] for path in table_folder.iterdir()] == ["warmpart"]


def test_weights_that_changed_meanwhile_leave_no_table(table_folder: Path) -> None:
    model = fresh()

    def change(done: int, total: int) -> None:
        with torch.no_grad():
            model.lm_head.weight[0] += 1

    with pytest.raises(RuntimeError, match="its weights changed"):
        warm.warm_up(model, progress=change)
    assert not table_folder.exists()


def test_an_entry_that_is_not_computed_predicts_nothing() -> None:
    interrupted(fresh(), FIRST_TEXTS + FIRST + 1)
    table = warm.cached(fresh())
    assert table is not None
    alone = dataclasses.replace(table, contexts=no_contexts(table.kept))
    arrays = viewed(backoff(alone, 1.0))
    for token in range(VOCAB):
        row, length = find_warm(*arrays, NOTHING, NOTHING, NOTHING, token)
        assert (row >= 0) == bool(table.probabilities[token, 0] > 0)
        assert length == 0


def test_generate_drafts_from_it_and_writes_the_same_text() -> None:
    model, prompt = fresh(), words(9)
    plain = model.generate(**prompt, do_sample=False, max_new_tokens=24)
    interrupted(model, FIRST_TEXTS + FIRST + 1)
    config = lade.LookaheadConfig(budget=16, adapt=False)
    drafted = lade.generate(model, **prompt, config=config, do_sample=False, max_new_tokens=24)
    assert drafted.tolist() == plain.tolist()
    stats = lade.last_stats()
    assert stats is not None
    assert stats.warm_table == warm.cached(model).digest
    assert stats.proposed["warm"] > 0
