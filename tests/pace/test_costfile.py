"""The file of a model's step costs: found again by the same model only, and ignored if it is broken."""

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from families import BRANCHABLE
from tiny import tiny_model
from transformers import PreTrainedModel

from lade.files import safefile
from lade.files.cachefolder import CacheWarning
from lade.pace import costfile
from lade.pace.cost import CostPolicy, StepCost

LLAMA, GPT2 = (next(family for family in BRANCHABLE if family.name == name) for name in ("llama", "gpt2"))


@pytest.fixture
def model() -> PreTrainedModel:
    return tiny_model(LLAMA)


def measured(slope: float = 0.1) -> StepCost:
    cost = StepCost()
    for _ in range(10):
        for width in (1, 8, 32):
            cost.observe(width, 100, 1, 0.01 * (1 + slope * (width - 1)))
            cost.observe(4 * width, 3000, 4, 0.02 * (1 + slope * (width - 1)))
    return cost


def test_what_is_stored_is_loaded(model: PreTrainedModel) -> None:
    cost = measured()
    costfile.keeper(model)(cost.logs())
    loaded = costfile.load(model)
    assert loaded.logs() == cost.logs()
    assert len(loaded.logs()) == 2
    assert StepCost(loaded.logs(), CostPolicy(optimism=0.0)).table(32, 100, 1)[32] == pytest.approx(4.1, rel=0.05)
    assert not loaded.known(32, 100, 1)


def test_costs_of_several_processes(model: PreTrainedModel) -> None:
    """Each number of processes has a file of its own."""
    costfile.keeper(model, 2)(measured().logs())
    assert [len(costfile.load(model, processes).logs()) for processes in (1, 2, 3)] == [0, 2, 0]


def test_without_a_file_nothing_is_known(model: PreTrainedModel, folder: Path) -> None:
    assert costfile.load(model).logs() == {}
    assert list(folder.iterdir()) == []


def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)


def device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costfile, "device_name", lambda _: "another device")


def attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny_model(LLAMA).config, "_attn_implementation_internal", "another")


@pytest.mark.parametrize("other", [threads, device, attention])
def test_the_costs_of_another_way_to_run_are_ignored(
    other: Callable[[pytest.MonkeyPatch], None], model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    costfile.keeper(model)(measured().logs())
    path = costfile.cost_file(model)
    other(monkeypatch)
    assert costfile.load(model).logs() == {}
    path.rename(costfile.cost_file(model))
    with pytest.warns(CacheWarning, match="it is for .*; this is "):
        assert costfile.load(model).logs() == {}


def test_the_costs_of_another_model_are_ignored(model: PreTrainedModel) -> None:
    costfile.keeper(model)(measured().logs())
    assert costfile.load(tiny_model(GPT2)).logs() == {}
    assert costfile.load(copy.deepcopy(tiny_model(LLAMA)).to(torch.bfloat16)).logs() == {}


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-8])


def flipped(path: Path) -> None:
    octets = bytearray(path.read_bytes())
    octets[-3] ^= 64
    path.write_bytes(octets)


def text(path: Path) -> None:
    path.write_text("some words")


def folder_instead(path: Path) -> None:
    path.unlink()
    path.mkdir()


def rewritten(tensors: dict[str, Any]) -> Callable[[Path], None]:
    """A valid file with the right metadata that holds no costs."""

    def rewrite(path: Path) -> None:
        _, metadata = safefile.read(path)
        safefile.write(path, tensors, metadata)

    return rewrite


BROKEN = {
    "cut": cut,
    "flipped": flipped,
    "text": text,
    "folder": folder_instead,
    "name": rewritten({"one": torch.zeros(13, dtype=torch.float64)}),
    "shape": rewritten({"0.7": torch.zeros(12, dtype=torch.float64)}),
    "dtype": rewritten({"0.7": torch.zeros(13, dtype=torch.int64)}),
    "nan": rewritten({"0.7": torch.full((13,), float("nan"), dtype=torch.float64)}),
    "huge": rewritten({"0.7": torch.full((13,), 1e9, dtype=torch.float64)}),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_ignored_with_a_warning(name: str, model: PreTrainedModel) -> None:
    costfile.keeper(model)(measured().logs())
    BROKEN[name](costfile.cost_file(model))
    with pytest.warns(CacheWarning, match="lade ignores the costs of steps"):
        assert costfile.load(model).logs() == {}


def test_a_broken_file_is_replaced(model: PreTrainedModel) -> None:
    costfile.cost_file(model).write_text("some words")
    costfile.keeper(model)(measured().logs())
    assert costfile.load(model).logs() == measured().logs()


def test_a_folder_that_cannot_be_written_is_a_warning(
    model: PreTrainedModel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "file").write_text("")
    monkeypatch.setenv("LADE_CACHE", str(folder / "file" / "folder"))
    with pytest.warns(CacheWarning, match="in memory only"):
        costfile.keeper(model)(measured().logs())


def test_an_interrupted_write_leaves_the_old_file(model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    costfile.keeper(model)(measured().logs())

    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("lade.files.atomic.os.fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        costfile.keeper(model)(measured(0.5).logs())
    assert costfile.load(model).logs() == measured().logs()
    assert list(costfile.cost_file(model).parent.iterdir()) == [costfile.cost_file(model)]


def test_two_writers_leave_a_whole_file(model: PreTrainedModel) -> None:
    costs = [measured(0.1), measured(0.5)]
    kept = [cost.logs() for cost in costs]
    costfile.keeper(model)(costs[0].logs())

    def store_often(cost: StepCost) -> None:
        for _ in range(20):
            costfile.keeper(model)(cost.logs())

    with ThreadPoolExecutor(2) as writers:
        done = [writers.submit(store_often, cost) for cost in costs]
    assert [writer.result() for writer in done] == [None, None]
    assert costfile.load(model).logs() in kept  # a broken file would warn, and warnings are errors
    assert list(costfile.cost_file(model).parent.iterdir()) == [costfile.cost_file(model)]


def test_without_a_cache_folder_costs_start_from_the_prior(
    model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LADE_CACHE", "~nobody-of-this-name/lade")
    with pytest.warns(CacheWarning, match="home directory"):
        assert costfile.load(model).logs() == {}
