"""A warm table whose computation is interrupted: what is kept, what goes on with it, and when it does not count."""

import copy
import itertools
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from families import BY_NAME, VOCAB
from interrupts import interrupted_at
from tiny import tiny_model
from transformers import PreTrainedModel

import lade.files.safefile
from lade.applications import cli
from lade.files.cachefolder import CacheWarning
from lade.memory.warm import part as warmpart
from lade.memory.warm import texts as warmtexts
from lade.memory.warm.part import PartFile
from lade.memory.warm.table import plan_of
from lade.memory.warm.warming import compute, table_file, warm_up
from lade.memory.warmtable import WarmTable
from lade.models.shipped import STORIES

LENGTH = 8  # of `short_texts`
TOTAL = VOCAB + warmtexts.ROWS * LENGTH
pytestmark = pytest.mark.usefixtures("table_folder", "short_texts", "small_batches")


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """40 entries in a forward; 40, 40, 40 and 8 texts side by side; a text is read again two places at a time."""
    monkeypatch.setattr("lade.memory.warm.table.LOGITS", 40 * VOCAB)
    monkeypatch.setattr("lade.memory.warm.reader.LOGITS", 2 * 40 * VOCAB)


def fresh(name: str = "llama") -> PreTrainedModel:
    return copy.deepcopy(tiny_model(BY_NAME[name]))


def interrupted(model: PreTrainedModel, at: int, **arguments: Any) -> list[int]:
    """What the progress told until `at` tokens were through the model."""
    return interrupted_at(lambda stop: warm_up(model, progress=stop, **arguments), at)


def gone_on(model: PreTrainedModel, **arguments: Any) -> tuple[WarmTable, list[int]]:
    told: list[int] = []
    table = warm_up(model, progress=lambda done, total: told.append(done), **arguments)
    assert told[-1] == TOTAL
    return table, told


@cache
def whole(name: str = "llama") -> WarmTable:
    """What is computed without an interrupt, once for all tests."""
    return compute(fresh(name))


def same(table: WarmTable, other: WarmTable) -> None:
    """Texts that are read again at once may differ from those read token by token in their last bits."""
    assert torch.equal(table.tokens, other.tokens)
    assert torch.equal(table.probabilities, other.probabilities)
    assert torch.equal(table.contexts.endings, other.contexts.endings)
    torch.testing.assert_close(table.contexts.probabilities, other.contexts.probabilities)


def names(folder: Path) -> list[str]:
    return sorted(path.name.split("-")[0] for path in folder.iterdir())


@pytest.mark.parametrize(
    ("name", "at"),
    [
        *(
            ("llama", at)
            for at in (1, VOCAB, VOCAB + 1, VOCAB + 40 * 8, VOCAB + 40 * 8 + 120, TOTAL * 79 // 100, TOTAL)
        ),
        *(("gpt2", VOCAB + 40 * 8 + 120), ("mistral", VOCAB + 40 * 8 + 120)),
    ],
)
def test_an_interrupted_computation_goes_on(name: str, at: int, table_folder: Path) -> None:
    before = interrupted(fresh(name), at)
    assert names(table_folder) == ["warmpart"]
    table, after = gone_on(fresh(name)) if at < TOTAL else (warm_up(fresh(name)), [TOTAL + 1])
    assert after[0] > before[-1]  # nothing is done twice
    same(table, whole(name))
    assert names(table_folder) == ["warm3"]


def test_interrupts_in_a_row_lose_nothing(table_folder: Path) -> None:
    told = [interrupted(fresh(), at) for at in range(100, TOTAL, 150)]
    assert all(later[0] > earlier[-1] for earlier, later in itertools.pairwise(told))
    table, _ = gone_on(fresh())
    same(table, whole())


def test_the_cost_of_both_is_told(table_folder: Path) -> None:
    interrupted(fresh(), TOTAL // 2)
    (path,) = table_folder.iterdir()
    assert float(lade.files.safefile.read(path)[1]["seconds"]) > 0
    changed(seconds="1000.0")(path)
    table, _ = gone_on(fresh())
    assert 1000 < table.seconds < 1900


@pytest.mark.parametrize(("place", "name", "last"), [(torch, "multinomial", 12), (warmtexts, "TurnState", 2)])
def test_an_interrupt_anywhere_leaves_a_sound_part(
    place: Any, name: str, last: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only behind a forward: also where a step is drawn but not counted yet, and where a batch begins."""
    real = getattr(place, name)
    calls: list[int] = []

    def cut(*arguments: Any, **more: Any) -> Any:
        calls.append(1)
        found = real(*arguments, **more)
        if len(calls) == last:
            raise KeyboardInterrupt
        return found

    with monkeypatch.context() as patch:
        patch.setattr(place, name, cut)
        with pytest.raises(KeyboardInterrupt):
            warm_up(fresh())
    table, _ = gone_on(fresh())
    same(table, whole())


# Parts that do not count


def other_weights(path: Path) -> PreTrainedModel:
    model = fresh()
    with torch.no_grad():
        model.lm_head.weight[0] += 1
    return model


def changed(**metadata: str) -> Callable[[Path], PreTrainedModel]:
    def change(path: Path) -> PreTrainedModel:
        tensors, found = lade.files.safefile.read(path)
        lade.files.safefile.write(path, tensors, found | metadata)
        return fresh()

    return change


def with_tensor(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Path], PreTrainedModel]:
    def rewrite(path: Path) -> PreTrainedModel:
        tensors, found = lade.files.safefile.read(path)
        tensors[name] = change(tensors[name]).contiguous()
        lade.files.safefile.write(path, tensors, found)
        return fresh()

    return rewrite


def cut_off(path: Path) -> PreTrainedModel:
    path.write_bytes(path.read_bytes()[:-1])
    return fresh()


STALE = {
    "other weights": other_weights,
    "another version of lade": changed(lade="0.0.1"),
    "another format": changed(format="0"),
    "another device": changed(device="abacus"),
    "no cost": changed(seconds="nan"),
    "cut off": cut_off,
    "no token": with_tensor("tokens", lambda tokens: tokens + VOCAB),
    "no token in a text": with_tensor("steps.0", lambda tokens: tokens - VOCAB),
    "no token next": with_tensor("next", lambda tokens: tokens + VOCAB),
    "no probability": with_tensor("probabilities", torch.neg),
    "fewer texts": with_tensor("whole.0", lambda tokens: tokens[1:]),
    "shorter texts": with_tensor("whole.0", lambda tokens: tokens[:, 1:]),
    "other rows": with_tensor("steps.0", lambda tokens: tokens[1:]),
    "no generator": with_tensor("generator", lambda state: state[1:]),
    "a generator of other numbers": with_tensor("generator", lambda state: state.int()),
}


@cache
def sound_part() -> tuple[str, bytes]:
    """Its name and content."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("LADE_CACHE", folder)
        interrupted(fresh(), VOCAB + 40 * 8 + 120)
        (path,) = Path(folder).iterdir()
        return path.name, path.read_bytes()


def put_sound_part(folder: Path) -> Path:
    name, content = sound_part()
    folder.mkdir()
    path = folder / name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("kind", STALE)
def test_a_stale_part_is_ignored_and_removed(kind: str, table_folder: Path) -> None:
    path = put_sound_part(table_folder)
    model = STALE[kind](path)
    assert PartFile(model, plan_of(model, 16)).load() is None
    assert not path.exists()
    assert interrupted(model, 1) == [40]


@pytest.mark.parametrize("kind", ["other weights", "no token next"])
def test_behind_a_stale_part_the_whole_table_is_computed(kind: str, table_folder: Path) -> None:
    model = STALE[kind](put_sound_part(table_folder))
    table, told = gone_on(model)
    assert told[0] == 40
    same(table, compute(model) if kind == "other weights" else whole())
    assert names(table_folder) == ["warm3"]


def test_a_sound_part_counts(table_folder: Path) -> None:
    """Without damage the cases above would go on."""
    put_sound_part(table_folder)
    table, told = gone_on(fresh())
    assert told[0] > VOCAB + 40 * 8
    same(table, whole())


def test_another_top_begins_anew() -> None:
    interrupted(fresh(), TOTAL // 2)
    table, told = gone_on(fresh(), top=3)
    assert told[0] == 40
    same(table, compute(fresh(), 3))


def test_weights_that_changed_meanwhile_leave_no_part(table_folder: Path) -> None:
    model = fresh()

    def change(done: int, total: int) -> None:
        with torch.no_grad():
            model.lm_head.weight[0] += 1
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        warm_up(model, progress=change)
    assert not table_folder.exists() or not list(table_folder.iterdir())


# How often, and where it cannot be kept


@pytest.mark.parametrize(("pause", "saves"), [(0.0, range(4, warmpart.SAVES + 1)), (1000.0, range(1))])
def test_a_bounded_number_of_saves(pause: float, saves: range, monkeypatch: pytest.MonkeyPatch) -> None:
    """None where a table takes no time; each goes on to the same table, as if the process had been killed behind it."""
    kept: list[bytes] = []
    real = PartFile.save

    def save(self: PartFile, part: Any) -> None:
        real(self, part)
        kept.append(self.path.read_bytes())

    monkeypatch.setattr(warmpart, "PAUSE", pause)
    monkeypatch.setattr(PartFile, "save", save)
    table = warm_up(fresh())
    assert len(kept) in saves
    for content in kept[::3]:
        table_file(fresh()).unlink()
        PartFile(fresh(), plan_of(fresh(), 16)).path.write_bytes(content)
        again, told = gone_on(fresh())
        assert told[0] > 40
        same(again, table)


def test_a_folder_that_takes_nothing_costs_a_warning(table_folder: Path) -> None:
    table_folder.write_text("a file where the folder should be")
    with pytest.warns(CacheWarning, match="keeps no part of the warm table"):
        interrupted(fresh(), TOTAL // 2)


def test_the_command_goes_on_behind_ctrl_c(table_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, steps = warmtexts.TurnState, []

    def cut(*arguments: Any) -> Any:
        steps.append(1)
        if len(steps) == 2:
            raise KeyboardInterrupt
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(warmtexts, "TurnState", cut)
        stopped = CliRunner().invoke(cli.main, ["warm", STORIES, "--device", "cpu", "--threads", "1"])
    assert stopped.exit_code == 130
    assert "interrupted; the part computed so far is kept; the same command continues" in stopped.stderr
    assert names(table_folder) == ["warmpart"]
    (path,) = table_folder.iterdir()
    assert len(lade.files.safefile.read(path)[0]["whole.0"]) > 0
    finished = CliRunner().invoke(cli.main, ["warm", STORIES, "--device", "cpu", "--threads", "1"])
    assert finished.exit_code == 0, finished.output
    assert names(table_folder) == ["warm3"]
