"""Warm tables with contexts of a user's prompts: where they are kept, what replaces them, and interrupts."""

import copy
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from families import BY_NAME, VOCAB
from interrupts import interrupted_at
from tiny import tiny_model, words
from transformers import PreTrainedModel

import lade
import lade.files.safefile
from lade.files.cachefolder import CacheWarning
from lade.memory.warm import answersfile
from lade.memory.warm import warming as warm
from lade.memory.warm.answers import answer, answer_plan, joined
from lade.memory.warm.answersfile import AnswersFile
from lade.memory.warm.contexts import smoothed
from lade.memory.warm.file import grown_file, table_file
from lade.memory.warm.growing import grow, prompts_hash
from lade.memory.warmtable import WarmContexts

LENGTH = 6
PROMPTS = [(9, 8, 7), (3,), (1, 2), (5, 6, 7, 8), (4, 5, 6), (30, 31), (60,), (33, 34)]
TOTAL = len(PROMPTS) * LENGTH
pytestmark = pytest.mark.usefixtures("table_folder", "short_texts", "small_batches")


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lade.memory.warm.answers.SIDE_BY_SIDE", 3)


def fresh() -> PreTrainedModel:
    """The tiny model, as another process would load it."""
    return copy.deepcopy(tiny_model(BY_NAME["llama"], "sdpa"))


def grown(model: PreTrainedModel, prompts: Any = PROMPTS, **arguments: Any) -> tuple[warm.WarmTable, list[int]]:
    told: list[int] = []
    table = grow(model, prompts, length=LENGTH, progress=lambda done, total: told.append(done), **arguments)
    return table, told


def interrupted(model: PreTrainedModel, at: int) -> list[int]:
    return interrupted_at(lambda stop: grow(model, PROMPTS, length=LENGTH, progress=stop), at)


def same(one: WarmContexts, other: WarmContexts) -> None:
    assert torch.equal(one.endings, other.endings)
    assert torch.equal(one.tokens, other.tokens)
    assert torch.equal(one.probabilities, other.probabilities)


def names(folder: Path) -> list[str]:
    return sorted(path.name.split("-")[0] + path.stem[path.stem.rindex("-") :] for path in folder.iterdir())


def test_contexts_of_the_answers_join_those_of_the_models_own_texts(table_folder: Path) -> None:
    model = fresh()
    own = warm.warm_up(model)
    table, told = grown(model)
    assert told[-1] == TOTAL
    endings = {tuple(ending) for ending in table.contexts.endings.tolist()}
    assert {tuple(ending) for ending in own.contexts.endings.tolist()} < endings
    assert (5, 6, 7, 8) in endings  # before the first token of an answer
    assert torch.equal(table.tokens, own.tokens)
    assert torch.equal(table.probabilities, own.probabilities)
    assert table.digest != own.digest
    assert table.seconds > own.seconds
    assert {*table_folder.iterdir()} == {table_file(model), grown_file(model)}


def test_it_is_made_once_and_found_by_every_call_and_process() -> None:
    model = fresh()
    table, _ = grown(model)
    assert warm.cached(model) is warm.warm_up(model) is table
    assert grown(model, [*reversed(PROMPTS), PROMPTS[0]]) == (table, [])
    other = fresh()
    found, told = grown(other)
    assert told == []
    assert found.digest == warm.cached(fresh()).digest == table.digest
    lade.generate(other, **words(5), max_new_tokens=8, do_sample=False)
    assert lade.last_stats().warm_table == table.digest


def test_other_prompts_replace_it_and_the_models_own_table_stays() -> None:
    model = fresh()
    first, _ = grown(model)
    own = warm.own_table(model)
    assert own.prompts == ""
    second, told = grown(model, PROMPTS[:3])
    assert told[-1] == 3 * LENGTH
    assert warm.cached(fresh()).digest == second.digest != first.digest
    assert warm.own_table(model).digest == own.digest
    grown_file(model).unlink()
    assert warm.cached(fresh()).digest == own.digest


def test_a_longer_answer_and_another_table_are_another_growth() -> None:
    model = fresh()
    first, _ = grown(model)
    longer = grow(model, PROMPTS, length=LENGTH + 1)
    assert longer.prompts != first.prompts
    wider, told = grown(model, top=20)
    assert wider.kept == 20
    assert told[-1] == TOTAL
    assert warm.own_table(model).kept == 20


def test_a_new_table_of_the_model_drops_it(table_folder: Path) -> None:
    model = fresh()
    grown(model)
    table = warm.warm_up(model, top=20)
    assert warm.cached(fresh()).digest == table.digest
    assert list(table_folder.iterdir()) == [table_file(model)]


def test_a_damaged_one_leaves_the_models_own() -> None:
    model = fresh()
    grown(model)
    own = warm.own_table(model)
    grown_file(model).write_bytes(b"damaged")
    with pytest.warns(CacheWarning, match="lade ignores "):
        assert warm.cached(fresh()).digest == own.digest


def test_contexts_are_those_of_the_answers_smoothed_with_those_of_the_models_own_texts() -> None:
    model = fresh()
    table, _ = grown(model)
    own = warm.own_table(model)
    plan = answer_plan(model, PROMPTS, own.kept, LENGTH)
    one, two, three = (answer(model, plan, first, lambda done: None) for first in (0, 3, 6))
    texts = joined(joined(one, two), three)
    same(table.contexts, smoothed(texts, own.tokens, own.probabilities, own.contexts))


# Interrupts


@pytest.mark.parametrize("at", [1, 3 * LENGTH, 3 * LENGTH + 1, 6 * LENGTH + 1, TOTAL])
def test_an_interrupted_computation_goes_on(at: int, table_folder: Path) -> None:
    whole, _ = grown(model := fresh())
    grown_file(model).unlink()
    interrupted(fresh(), at)
    kept = (at - 1) // (3 * LENGTH) * 3 * LENGTH  # an interrupt at a batch's last token comes before the batch is done
    assert len(list(table_folder.glob("warmpart-*"))) == int(kept > 0)
    table, told = grown(fresh())
    assert told[0] > kept
    same(table.contexts, whole.contexts)
    assert {*table_folder.iterdir()} == {table_file(model), grown_file(model)}


def test_interrupts_in_a_row_lose_nothing() -> None:
    interrupted(fresh(), 3 * LENGTH + 1)
    assert interrupted(fresh(), 6 * LENGTH + 1)[0] > 3 * LENGTH
    assert grown(fresh())[1][0] > 6 * LENGTH


def changed(**metadata: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        tensors, found = lade.files.safefile.read(path)
        lade.files.safefile.write(path, tensors, found | metadata)

    return change


def with_tensor(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Path], None]:
    def rewrite(path: Path) -> None:
        tensors, found = lade.files.safefile.read(path)
        tensors[name] = change(tensors[name]).contiguous()
        lade.files.safefile.write(path, tensors, found)

    return rewrite


STALE = {
    "other prompts": changed(prompts="0123456789abcdef"),
    "another version of lade": changed(lade="0.0.1"),
    "another format": changed(format="0"),
    "another device": changed(device="abacus"),
    "no cost": changed(seconds="nan"),
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "no token": with_tensor("tokens", lambda tokens: tokens + VOCAB),
    "no token in an answer": with_tensor("written", lambda tokens: tokens - VOCAB),
    "no probability": with_tensor("probabilities", torch.neg),
    "fewer answers": with_tensor("written", lambda tokens: tokens[1:]),
    "shorter answers": with_tensor("counted", lambda counted: counted[:, 1:]),
    "a count of 2": with_tensor("counted", lambda counted: counted + 2),
    "another type": with_tensor("written", lambda tokens: tokens.long()),
}


@cache
def sound_files() -> dict[str, bytes]:
    """What an interrupted computation leaves: the model's own table and a part of the answers."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("LADE_CACHE", folder)
        interrupted(fresh(), 4 * LENGTH)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def put_sound_files(folder: Path) -> None:
    folder.mkdir()
    for name, content in sound_files().items():
        (folder / name).write_bytes(content)


@pytest.mark.parametrize("kind", STALE)
def test_a_stale_part_is_ignored_and_removed(kind: str, table_folder: Path) -> None:
    put_sound_files(table_folder)
    (path,) = table_folder.glob("warmpart-*")
    STALE[kind](path)
    assert len(file_of(fresh()).load()[0].written) == 0
    assert not path.exists()


def file_of(model: PreTrainedModel) -> AnswersFile:
    own = warm.own_table(model)
    plan = answer_plan(model, PROMPTS, own.kept, LENGTH)
    return AnswersFile(model, plan, prompts_hash(plan, own))


def test_a_sound_part_counts(table_folder: Path) -> None:
    """Without damage the cases above would go on."""
    put_sound_files(table_folder)
    texts, seconds = file_of(fresh()).load()
    assert len(texts.written) == 3
    assert seconds > 0


@pytest.mark.parametrize(("pause", "saves"), [(0.0, 3), (1000.0, 0)])
def test_answers_are_saved_now_and_then(pause: float, saves: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed process loses a bounded time of work, and a short computation writes nothing."""
    kept: list[int] = []
    monkeypatch.setattr(answersfile, "PAUSE", pause)
    monkeypatch.setattr(AnswersFile, "save", lambda self, texts, seconds: kept.append(len(texts.written)))
    grown(fresh())
    assert kept == [3, 6, 8][:saves]


def test_weights_that_changed_meanwhile_leave_nothing(table_folder: Path) -> None:
    model = fresh()
    own = table_file(model)

    def change(done: int, total: int) -> None:
        with torch.no_grad():
            model.lm_head.weight[0] += 1

    with pytest.raises(RuntimeError, match="model: its weights changed while it answered the prompts"):
        grow(model, PROMPTS, length=LENGTH, progress=change)
    assert list(table_folder.iterdir()) == [own]


def test_wrong_arguments_are_named_before_any_work(table_folder: Path) -> None:
    with pytest.raises(ValueError, match="top must be an integer from 1 to 64, "):
        grow(fresh(), PROMPTS, top=0)
    with pytest.raises(ValueError, match="tokenizer must be a transformers tokenizer or None, got 7"):
        grow(fresh(), PROMPTS, tokenizer=7)
    with pytest.raises(ValueError, match="progress must be a function of two integers, or None, got 7"):
        grow(fresh(), PROMPTS, progress=7)
    with pytest.raises(ValueError, match="length must be an integer of at least 1, got 0"):
        grow(fresh(), PROMPTS, length=0)
    assert not table_folder.exists()
