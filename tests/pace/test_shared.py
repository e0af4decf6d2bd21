"""Costs shared by the calls on a model: one object per model and way to run it, thread-safe, stored now and then."""

import copy
import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from families import BY_NAME
from tiny import tiny_model
from transformers import PreTrainedModel

from lade.pace import costfile
from lade.pace.cost import Key, StepCost
from lade.pace.shared import FIRST_SAVE, LATER_SAVES, Costs, SharedCost, shared_cost


@pytest.fixture
def model() -> PreTrainedModel:
    return copy.deepcopy(tiny_model(BY_NAME["llama"], "sdpa"))


def test_one_per_model_and_way_to_run_it(model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    own = shared_cost(model)
    assert shared_cost(model) is own
    assert shared_cost(copy.deepcopy(model)) is not own
    with monkeypatch.context() as patch:
        patch.setattr(torch, "get_num_threads", lambda: 77)
        assert shared_cost(model) is not own
    with monkeypatch.context() as patch:
        patch.setattr(model.config, "_attn_implementation_internal", "another")
        assert shared_cost(model) is not own
    assert shared_cost(model) is own
    assert shared_cost(model.to(torch.bfloat16)) is not own


def test_it_is_freed_with_its_model() -> None:
    model = copy.deepcopy(tiny_model(BY_NAME["llama"], "sdpa"))
    gone = weakref.ref(model), weakref.ref(shared_cost(model))
    del model
    gc.collect()
    assert [reference() for reference in gone] == [None, None]


def observe(shared: SharedCost, steps: int) -> None:
    for _ in range(steps):
        shared.observe(8, 100, 1, 0.02)


def test_it_is_stored_after_some_steps_and_then_after_many(model: PreTrainedModel, folder: Path) -> None:
    shared = shared_cost(model)
    for enough in (FIRST_SAVE, LATER_SAVES, LATER_SAVES):
        observe(shared, enough - 1)
        shared.save()
        assert list(folder.iterdir()) == []
        observe(shared, 1)
        shared.save()
        assert costfile.load(model).logs() == shared.cost.logs() != {}
        costfile.cost_file(model).unlink()
    shared.save()
    assert list(folder.iterdir()) == []


def test_a_new_process_starts_with_the_stored_costs(model: PreTrainedModel) -> None:
    cost = StepCost()
    for _ in range(20):
        cost.observe(1, 100, 1, 0.01)
        cost.observe(16, 100, 1, 0.03)
    costfile.keeper(model)(cost.logs())
    shared = shared_cost(model)
    assert shared.table(16, 100, 1) == StepCost(cost.logs()).table(16, 100, 1) != StepCost().table(16, 100, 1)
    assert not shared.known(1, 100, 1)


class Guarded(StepCost):
    """Costs that may be used only under the lock."""

    lock: Any

    def observe(self, tokens: int, context: int, rows: int, seconds: float, first: bool = False) -> None:
        assert self.lock._is_owned()
        super().observe(tokens, context, rows, seconds, first)

    def table(self, limit: int, context: int, rows: int) -> list[float]:
        assert self.lock._is_owned()
        return super().table(limit, context, rows)

    def known(self, tokens: int, context: int, rows: int) -> bool:
        assert self.lock._is_owned()
        return super().known(tokens, context, rows)

    def logs(self) -> dict[Key, list[float]]:
        assert self.lock._is_owned()
        return super().logs()


def test_costs_are_used_under_the_lock_and_written_outside() -> None:
    """Steps of other calls do not wait for the disk."""
    kept: list[bool] = []
    shared = SharedCost(Guarded(), lambda logs: kept.append(shared._lock._is_owned()))
    shared.cost.lock = shared._lock
    observe(shared, LATER_SAVES)
    assert len(shared.table(9, 100, 1)) == 10
    assert not shared.known(1, 100, 1)
    shared.save()
    assert kept == [False]
    assert not shared._lock._is_owned()


def test_threads_take_turns(restless: None) -> None:
    kept: list[Costs] = []
    shared = SharedCost(StepCost(), kept.append)

    def work(rows: int) -> None:
        for step in range(450):
            shared.observe(rows * (1 + step % 8), 100, rows, 0.01)
            shared.table(32, 100, rows)
            shared.known(rows, 100, rows)
            shared.save()

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(work, (1, 2, 4, 8))) == [None] * 4
    assert len(kept) == 1 + (1800 - FIRST_SAVE) // LATER_SAVES
    assert len(shared.cost.logs()) == 4
