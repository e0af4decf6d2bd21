"""`warm=True`: a table before the first call, where a model is loaded and where a scope begins; never a stale one."""

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Barrier, Thread
from typing import Any
from unittest.mock import Mock

import peft
import pytest
import torch
from families import BY_NAME
from tiny import tiny_model, words
from transformers import PreTrainedModel, T5Config, T5ForConditionalGeneration

import lade
import lade.models
from lade.files.cachefolder import CacheWarning
from lade.memory.warm import warming as warm
from lade.models.shipped import FOLDER, STORIES

AUTO = lade.LookaheadConfig(mode="auto", budget=16, adapt=False)
PAPER = lade.LookaheadConfig(mode="lookahead")
pytestmark = pytest.mark.usefixtures("table_folder", "short_texts")
GREEDY = {"do_sample": False, "max_new_tokens": 12}


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Counts the tables that are computed inside the test."""
    monkeypatch.setattr(warm, "compute", Mock(wraps=warm.compute))
    return warm.compute


def fresh() -> PreTrainedModel:
    return copy.deepcopy(tiny_model(BY_NAME["llama"], "sdpa"))


def adapted(model: PreTrainedModel) -> peft.PeftModel:
    settings = peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj"], init_lora_weights=False)
    with torch.random.fork_rng(devices=[]):
        return peft.get_peft_model(model, settings).eval()


def warm_drafts() -> int:
    stats = lade.last_stats()
    assert stats.fallback is None
    return stats.proposed.get("warm", 0)


@pytest.mark.compat
def test_a_loaded_model_has_its_table(computed: Mock, table_folder: Path) -> None:
    model, _ = lade.models.load("stories260K", warm=True)
    assert computed.call_count == 1
    again, tokenizer = lade.models.load(FOLDER / STORIES, warm=True)
    assert computed.call_count == 1
    assert warm.cached(again, tokenizer=tokenizer) is warm.cached(again) is not None
    assert list(table_folder.iterdir()) == [warm.table_file(model)]


def test_nothing_is_computed_unasked(computed: Mock, table_folder: Path) -> None:
    model, _ = lade.models.load("stories260K")
    with lade.lookahead(model, AUTO):
        model.generate(**words(9), **GREEDY)
    lade.generate(model, **words(9), config=AUTO, **GREEDY)
    assert warm_drafts() == 0
    assert computed.call_count == 0
    assert not table_folder.exists()


@pytest.mark.compat
def test_a_scope_begins_with_the_table(computed: Mock) -> None:
    model, prompt = fresh(), words(9)
    plain = model.generate(**prompt, **GREEDY)
    with lade.lookahead(model, AUTO, warm=True):
        assert computed.call_count == 1
        assert model.generate(**prompt, **GREEDY).tolist() == plain.tolist()
        assert warm_drafts() > 0
    with lade.lookahead(fresh(), AUTO, warm=True):
        assert computed.call_count == 1


def test_statistics_tell_which_table_was_used() -> None:
    model, prompt = fresh(), words(9)
    lade.generate(model, **prompt, config=AUTO, **GREEDY)
    assert lade.last_stats().warm_table is None
    table = warm.warm_up(model)
    other = warm.compute(fresh(), top=3)
    lade.generate(model, **prompt, config=AUTO, **GREEDY)
    assert lade.last_stats().warm_table == table.digest == warm.warm_up(fresh()).digest != other.digest
    assert f"warm table {table.digest}" in str(lade.last_stats())
    assert lade.last_stats().as_dict()["warm_table"] == table.digest
    for cold in (replace(AUTO, sources=("suffix", "recycled")), replace(AUTO, budget=1), PAPER):
        lade.generate(model, **prompt, config=cold, **GREEDY)
        assert lade.last_stats().warm_table is None
        assert "warm" not in str(lade.last_stats())


@pytest.mark.parametrize("writable", [True, False])
def test_a_wrapped_models_table_is_the_one_that_generate_uses(writable: bool, table_folder: Path) -> None:
    if not writable:
        table_folder.write_text("a file where the folder should be")
    model, prompt = adapted(fresh()), words(9)
    plain = model.generate(**prompt, **GREEDY)
    if writable:
        warm.warm_up(model)
    else:
        with pytest.warns(CacheWarning, match="keeps the warm table in memory only"):
            warm.warm_up(model)
    with lade.lookahead(model, AUTO):
        assert model.generate(**prompt, **GREEDY).tolist() == plain.tolist()
    assert warm_drafts() > 0
    assert warm.cached(model) is warm.cached(model.get_base_model()) is not None


def by_an_optimizer(model: PreTrainedModel) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(**words(9), labels=words(9)["input_ids"]).loss.backward()
    optimizer.step()


def by_loading(model: PreTrainedModel) -> None:
    model.load_state_dict({name: tensor * 1.5 for name, tensor in model.state_dict().items()})


def by_merging(model: PreTrainedModel) -> None:
    adapted(model).merge_adapter()


@pytest.mark.parametrize("change", [by_an_optimizer, by_loading, by_merging])
def test_a_model_changed_inside_a_scope_drafts_without_its_old_table(change: Callable[[PreTrainedModel], None]) -> None:
    model, prompt = fresh(), words(9)
    with lade.lookahead(model, AUTO, warm=True):
        model.generate(**prompt, **GREEDY)
        assert warm_drafts() > 0
        change(model)
        model.generate(**prompt, **GREEDY)
        assert warm_drafts() == 0


def test_threads_that_ask_at_once_compute_once(computed: Mock) -> None:
    model, other = fresh(), fresh()
    barrier, tables = Barrier(4), []

    def work(each: PreTrainedModel) -> None:
        barrier.wait()
        tables.append(warm.warm_up(each))

    threads = [Thread(target=work, args=(each,)) for each in (model, other, model, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tables) == 4
    assert computed.call_count == 1


def test_weights_that_change_meanwhile_get_no_table(table_folder: Path) -> None:
    model = fresh()

    @torch.no_grad()
    def trains_on(done: int, total: int) -> None:
        model.lm_head.weight[3, 3] += 1

    with pytest.raises(RuntimeError, match="model: its weights changed while the warm table was computed"):
        warm.warm_up(model, progress=trains_on)
    assert warm.cached(model) is None
    assert not table_folder.exists()


@pytest.mark.parametrize("value", ["yes", 2, None])
def test_another_value_is_named(value: Any) -> None:
    for way in (
        lambda: lade.models.load("./nowhere", warm=value),
        lade.lookahead(fresh(), AUTO, warm=value).__enter__,
    ):
        with pytest.raises(ValueError, match=f"warm must be True, False, 1 or 0, got {value!r}"):
            way()


def test_refused_where_no_table_is_used(computed: Mock) -> None:
    with pytest.raises(ValueError, match="mode must be 'auto' where warm is given, got 'lookahead'"):
        lade.lookahead(fresh(), PAPER, warm=True).__enter__()
    config = T5Config(vocab_size=64, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    with pytest.raises(ValueError, match="model must be a model without an encoder, got T5ForConditionalGeneration"):
        lade.lookahead(T5ForConditionalGeneration(config), AUTO, warm=True).__enter__()
    assert computed.call_count == 0
