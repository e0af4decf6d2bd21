"""Warm tables: what they hold, which model they belong to, and files that are broken, foreign or written at once."""

import copy
import random
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Barrier, Thread
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from families import BRANCHABLE, VOCAB, Family
from forks import beside, needs_fork
from tiny import tiny_model
from transformers import PreTrainedModel, T5Config, T5ForConditionalGeneration

import lade.files.safefile
from lade.files.cachefolder import CacheWarning
from lade.memory.warm import file as warmfile
from lade.memory.warm import table as warmtable
from lade.memory.warm import texts as warmtexts
from lade.memory.warm.predictions import AfterPrefix
from lade.memory.warm.warming import cached, compute, table_file, warm_up
from lade.memory.warmtable import WarmTable

LLAMA = next(family for family in BRANCHABLE if family.name == "llama")
pytestmark = pytest.mark.usefixtures("table_folder", "short_texts")


@pytest.fixture
def short_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are made many times here."""
    monkeypatch.setattr(warmtexts, "LENGTH", 8)


@pytest.fixture
def few_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of entries and files."""
    monkeypatch.setattr(warmtexts, "ROWS", 4)


@pytest.fixture
def forwards(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the batches that are computed inside the test."""
    seen: list[int] = []

    class Counts(AfterPrefix):
        def logits(self, tokens: torch.Tensor) -> torch.Tensor:
            seen.append(len(tokens))
            return super().logits(tokens)

    monkeypatch.setattr(warmtable, "AfterPrefix", Counts)
    return seen


def fresh(family: Family = LLAMA) -> PreTrainedModel:
    """The tiny model, as another process would load it."""
    return copy.deepcopy(tiny_model(family))


@torch.no_grad()
def naive(model: PreTrainedModel, texts: Sequence[Sequence[int]]) -> torch.Tensor:
    """[texts, V] what follows texts of one length."""
    return model(input_ids=torch.tensor(texts)).logits[:, -1].softmax(-1)


class Vocabulary:
    """As much of a tokenizer as a table depends on."""

    def __init__(self, *words: str) -> None:
        self.words = words

    def get_vocab(self) -> dict[str, int]:
        return {word: index for index, word in enumerate(self.words)}


@pytest.mark.compat
@pytest.mark.usefixtures("few_texts")
@pytest.mark.parametrize("family", BRANCHABLE, ids=lambda family: family.name)
def test_the_table_is_the_models_own_top_k_after_the_prefix(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warmtexts, "LENGTH", 2)
    for prefix in ((), (3, 5)):
        assert_top_k_after(prefix, family, monkeypatch)


def assert_top_k_after(prefix: tuple[int, ...], family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warmtable, "likeliest_prefix", lambda *_: prefix)
    model = tiny_model(family)
    table = compute(model, top=5, batch_tokens=24)
    assert table.tokens.shape == table.probabilities.shape == (VOCAB, 5)
    asked = range(0, VOCAB, 7)
    for token, expected in zip(asked, naive(model, [(*prefix, token) for token in asked]), strict=True):
        tokens, probabilities = table.entry(token)
        torch.testing.assert_close(torch.tensor(probabilities), expected.topk(5).values)
        torch.testing.assert_close(expected[tokens], expected.topk(5).values)
        assert len(set(tokens)) == 5


def test_entries_are_lists_and_nothing_outside_the_vocabulary() -> None:
    table = compute(fresh(), top=3)
    tokens, probabilities = table.entry(4)
    assert tokens == table.tokens[4].tolist()
    assert probabilities == table.probabilities[4].tolist() == sorted(probabilities, reverse=True)
    assert table.entry(4) is table.entry(4)
    assert table.entry(VOCAB) == table.entry(-1) == ([], [])


def test_batches_and_progress(forwards: list[int]) -> None:
    told: list[tuple[int, int]] = []
    compute(fresh(), batch_tokens=40, progress=lambda done, total: told.append((done, total)))
    assert forwards == [4, 40, 20]  # the most frequent entries first
    total = 64 + warmtexts.ROWS * 8
    steps = [*[40] * 8, 4, *[40] * 8 * 2, *[8] * 8, 40, 20]  # the first texts, those entries, the other texts
    assert told == [(sum(steps[:done]), total) for done in range(1, len(steps) + 1)]
    assert told[-1] == (total, total)


def test_logits_of_a_batch_stay_small(forwards: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warmtable, "LOGITS", 20 * VOCAB)
    sizes: list[int] = []
    write = warmtexts._write

    def counts(model: Any, plan: Any, rows: int, *rest: Any) -> tuple[torch.Tensor, ...]:
        sizes.append(rows)
        return write(model, plan, rows, *rest)

    monkeypatch.setattr(warmtexts, "_write", counts)
    compute(fresh())
    assert forwards == [4, 20, 20, 20]
    assert sizes == [20] * 6 + [8]


def test_the_model_and_the_random_generators_are_left_as_they_were() -> None:
    model = fresh()
    model.config.attention_dropout = 0.5
    model.train()
    model.model.layers[0].eval()
    modes = [module.training for module in model.modules()]
    states = torch.get_rng_state(), np.random.get_state()[1].tobytes(), random.getstate()
    table = warm_up(model)
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (np.random.get_state()[1].tobytes(), random.getstate()) == states[1:]
    assert not table.probabilities.requires_grad
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(table.tokens, compute(fresh()).tokens)  # no dropout either


def test_the_training_flags_survive_an_error() -> None:
    model = fresh().train()

    def stop(done: int, total: int) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        compute(model, progress=stop)
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("top", [0, -1, VOCAB + 1, 2.0, True])
def test_a_wrong_top_is_named(top: Any) -> None:
    for function in (compute, warm_up):
        with pytest.raises(ValueError, match=rf"top must be an integer from 1 to 64, .*, got {top!r}"):
            function(fresh(), top=top)


def test_other_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="batch_tokens must be an integer of at least 1, got 0"):
        compute(fresh(), batch_tokens=0)
    config = T5Config(vocab_size=VOCAB, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    with pytest.raises(ValueError, match="model must be a model without an encoder, got T5ForConditionalGeneration"):
        warm_up(T5ForConditionalGeneration(config))


@pytest.mark.compat
def test_a_table_is_computed_once_and_found_by_the_next_process(forwards: list[int], table_folder: Path) -> None:
    model, other = fresh(), fresh()
    assert cached(model) is None
    assert not table_folder.exists()
    table = warm_up(model)
    assert forwards == [4, 60]
    assert cached(model) is warm_up(model) is table
    found = warm_up(other)
    assert forwards == [4, 60]
    assert torch.equal(found.tokens, table.tokens)
    assert torch.equal(found.probabilities, table.probabilities)
    for part in ("endings", "tokens", "probabilities"):
        assert torch.equal(getattr(found.contexts, part), getattr(table.contexts, part))
    assert found.seconds == table.seconds > 0
    assert list(table_folder.iterdir()) == [table_file(model)]


def test_a_table_with_fewer_tokens_is_replaced(forwards: list[int]) -> None:
    model = fresh()
    warm_up(model, top=4)
    assert warm_up(model, top=3).tokens.shape[1] == 4
    assert warm_up(model, top=8).tokens.shape[1] == 8
    assert forwards == [4, 60, 4, 60]
    assert cached(fresh()).tokens.shape[1] == 8


def test_a_table_with_more_tokens_is_never_replaced_by_a_smaller_one(
    forwards: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither where this process knows only a smaller one, nor for another vocabulary, nor by whoever ends later."""
    model, other = fresh(), fresh()
    assert warm_up(model, top=2).kept == 2
    warm_up(other, top=16, tokenizer=Vocabulary("a"))  # as another process would
    assert forwards == [4, 60, 4, 60]
    assert warm_up(model, top=4).kept == 16
    assert forwards == [4, 60, 4, 60]
    assert warm_up(fresh(), top=4, tokenizer=Vocabulary("b")).kept == 16
    assert cached(fresh()).kept == 16

    def slow(model: PreTrainedModel, top: int, **more: Any) -> warmtable.WarmTable:
        found = compute(model, top, **more)
        with monkeypatch.context() as patch:
            patch.setattr("lade.memory.warm.warming.compute", compute)
            warm_up(fresh(), top=16)
        return found

    table_file(model).unlink()
    monkeypatch.setattr("lade.memory.warm.warming.compute", slow)
    assert warm_up(fresh(), top=4).kept == cached(fresh()).kept == 16


def test_weights_are_read_only_where_a_table_of_this_configuration_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    warm_up(fresh(next(family for family in BRANCHABLE if family.name == "gpt2")))
    monkeypatch.setattr(warmfile, "fingerprint", lambda model: pytest.fail("the weights were read"))
    assert cached(fresh()) is None


def changed_in_place(model: PreTrainedModel) -> None:
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[5, 7] += 0.5


def changed_behind_autograd(model: PreTrainedModel) -> None:
    model.model.layers[1].mlp.up_proj.weight.data *= 1.5


def replaced(model: PreTrainedModel) -> None:
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach() * 2)


def in_half_precision(model: PreTrainedModel) -> None:
    model.to(torch.bfloat16)


@pytest.mark.parametrize("change", [changed_in_place, changed_behind_autograd, replaced, in_half_precision])
def test_a_changed_model_never_gets_the_old_table(change: Callable[[PreTrainedModel], None]) -> None:
    model, other = fresh(), fresh()
    old = warm_up(model)
    change(model)
    change(other)
    assert cached(model) is cached(other) is None
    new = warm_up(model)
    assert not torch.equal(new.probabilities, old.probabilities)
    assert torch.equal(cached(other).probabilities, new.probabilities)
    assert torch.equal(cached(fresh()).probabilities, old.probabilities)


def test_another_vocabulary_needs_another_table_where_it_is_known(forwards: list[int]) -> None:
    words, others = Vocabulary("a", "b"), Vocabulary("b", "a")
    model = fresh()
    table = warm_up(model, tokenizer=words)
    assert cached(model) is cached(model, tokenizer=words) is table
    assert cached(fresh(), tokenizer=words) is not None
    assert cached(model, tokenizer=others) is cached(fresh(), tokenizer=others) is None
    warm_up(model, tokenizer=others)
    assert forwards == [4, 60, 4, 60]


def rewritten(path: Path, **changes: Any) -> None:
    """A sound file with other metadata."""
    with safetensors.safe_open(path, framework="pt") as file:
        metadata = file.metadata() | changes
    safetensors.torch.save_file(safetensors.torch.load_file(path), path, metadata)


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)


def other_table(path: Path) -> None:
    warm_up(changed := fresh_changed())
    table_file(changed).replace(path)


def fresh_changed() -> PreTrainedModel:
    changed_in_place(model := fresh())
    return model


def wrong_tensors(path: Path) -> None:
    tensors, metadata = lade.files.safefile.read(path)
    tokens = torch.zeros(3, 2, dtype=torch.int32)
    lade.files.safefile.write(path, tensors | {"tokens": tokens, "probabilities": tokens.float()}, metadata)


def wrong_token(path: Path) -> None:
    tensors, metadata = lade.files.safefile.read(path)
    tensors["tokens"][7, 1] = VOCAB
    lade.files.safefile.write(path, tensors, metadata)


def wrong_probability(path: Path) -> None:
    tensors, metadata = lade.files.safefile.read(path)
    tensors["probabilities"][7, 1] = float("nan")
    lade.files.safefile.write(path, tensors, metadata)


def changed_part(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        tensors, metadata = lade.files.safefile.read(path)
        tensors[name] = change(tensors[name])
        lade.files.safefile.write(path, tensors, metadata)

    return damage


def no_tensors(path: Path) -> None:
    lade.files.safefile.write(path, {}, metadata_of(path))


def metadata_of(path: Path) -> dict[str, str]:
    return lade.files.safefile.read(path)[1]


BROKEN: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("no safetensors file at all, but longer than a header"),
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "one bit": flip_a_bit,
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "foreign": lambda path: safetensors.torch.save_file({"weight": torch.ones(3)}, path),
    "another model's": other_table,
    "another format": lambda path: rewritten(path, format="0"),
    "no cost": lambda path: rewritten(path, seconds="nan"),
    "words for a cost": lambda path: rewritten(path, seconds="long"),
    "wrong shapes": wrong_tensors,
    "no tensors": no_tensors,
    "no token": wrong_token,
    "no probability": wrong_probability,
    "no token in a context": changed_part("contexts.endings", lambda tokens: tokens - 2),
    "a context without a last token": changed_part("contexts.endings", lambda tokens: tokens.clamp(max=-1)),
    "no token after one": changed_part("contexts.tokens", lambda tokens: tokens + VOCAB),
    "no probability after one": changed_part("contexts.probabilities", torch.neg),
    "contexts in one row": changed_part("contexts.endings", torch.flatten),
    "contexts of other types": changed_part("contexts.endings", torch.Tensor.long),
    "longer contexts": changed_part("contexts.endings", lambda tokens: torch.cat([tokens, tokens], dim=1)),
    "fewer predictions than contexts": changed_part("contexts.tokens", lambda tokens: tokens[1:].contiguous()),
    "other predictions than entries": changed_part("contexts.tokens", lambda tokens: tokens[:, 1:].contiguous()),
}


@cache
def sound_table() -> tuple[WarmTable, bytes]:
    """A table of few texts and its file, computed once."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("LADE_CACHE", folder)
        return warm_up(fresh()), table_file(fresh()).read_bytes()


@pytest.mark.usefixtures("few_texts")
@pytest.mark.parametrize("damage", BROKEN)
def test_a_broken_or_foreign_file_is_ignored_with_one_warning_and_replaced(
    damage: str, table_folder: Path, forwards: list[int]
) -> None:
    table, content = sound_table()
    table_folder.mkdir()
    model, other = fresh(), fresh()
    path = table_file(model)
    path.write_bytes(content)
    BROKEN[damage](path)
    forwards.clear()
    with pytest.warns(CacheWarning, match="lade ignores .*safetensors: ") as record:
        assert cached(model) is None
    assert len(record) == 1
    assert cached(other) is None  # warned of once
    if damage == "a folder":
        path.rmdir()
    assert torch.equal(warm_up(model).tokens, table.tokens)
    assert forwards == [4, 60]
    assert torch.equal(cached(other).probabilities, table.probabilities)


def test_a_folder_that_takes_no_file_costs_a_warning(table_folder: Path, forwards: list[int]) -> None:
    table_folder.write_text("a file where the folder should be")
    model = fresh()
    assert cached(model) is None
    with pytest.warns(CacheWarning, match="keeps the warm table in memory only"):
        table = warm_up(model)
    assert warm_up(model) is table
    assert forwards == [4, 60]


def test_a_writer_that_fails_leaves_nothing_behind(table_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, target: Path) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.warns(CacheWarning, match="disk full"):
        warm_up(fresh())
    assert list(table_folder.iterdir()) == []


@needs_fork
def test_processes_that_write_at_once_leave_one_valid_file(table_folder: Path) -> None:
    table = warm_up(fresh())
    path = table_file(fresh())
    tensors, metadata = lade.files.safefile.read(path)

    def write() -> None:
        lade.files.safefile.write(path, tensors, metadata)

    with beside(lambda: [write() for _ in range(40)]):
        for _ in range(40):
            write()
            assert torch.equal(cached(fresh()).tokens, table.tokens)  # a broken file would warn, which is an error
    assert list(table_folder.iterdir()) == [path]


def test_threads_that_warm_up_at_once_agree(table_folder: Path) -> None:
    barrier, tables = Barrier(4), []

    def work() -> None:
        model = fresh()
        barrier.wait()
        tables.append(warm_up(model))

    threads = [Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tables) == 4
    assert all(torch.equal(table.tokens, tables[0].tokens) for table in tables)
    assert list(table_folder.iterdir()) == [table_file(fresh())]


def test_weights_without_data_have_no_table() -> None:
    warm_up(fresh())
    model = fresh().to("meta")
    assert cached(model) is None
    with pytest.raises(ValueError, match="model must hold its weights, got some on the meta device"):
        warm_up(model)


def test_the_shipped_models_table_predicts_its_text(shipped: tuple[Any, Any]) -> None:
    model, tokenizer = shipped
    table = compute(model)
    once = tokenizer("Once upon", add_special_tokens=False).input_ids
    assert once[-1] in table.entry(once[-2])[0]
