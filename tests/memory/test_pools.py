"""Pools stay with their tenant and their model, keep their size, survive a file exactly, and share between threads."""

import copy
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from drafting import Ending, Entry, remember, remembered
from families import BRANCHABLE, VOCAB
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import tiny_model
from transformers import PreTrainedModel

import lade
from lade.base.compiled import viewed
from lade.config.settings import CAPACITY
from lade.files import safefile
from lade.memory import pools
from lade.memory.context import CONTEXT, LENGTHS, NOTHING
from lade.memory.pools import Pool, drop_pools, fresh_pool, load_pool, save_pool, shared_pool
from lade.memory.predictions import AVERAGED, IS_YOUNG, MOST_COUNTED, TOP, forget, learn_prediction
from lade.memory.stages import BUCKETS
from lade.memory.table import PredictionTable

pytestmark = pytest.mark.usefixtures("as_python")

LLAMA, GPT2 = (next(family for family in BRANCHABLE if family.name == name) for name in ("llama", "gpt2"))


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return tiny_model(LLAMA)


@pytest.fixture(scope="module", autouse=True)
def small_tables() -> Iterator[None]:
    """At first, so that they grow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lade.memory.table.FIRST", 8)
        yield


@pytest.fixture(autouse=True)
def no_pools() -> Iterator[None]:
    """None at the start of a test, and none left behind."""
    drop_pools()
    yield
    drop_pools()


def teach(pool: Pool, *context: int, following: int = 7) -> None:
    with pool.lock:
        pool.table.reserve(CONTEXT)
        arrays = viewed(pool.table.ints), viewed(pool.table.masses)
        learn_prediction(*arrays, *context, [following, 8], [0.5, 0.25], 0, 2)
        forget(*arrays, pool.table.capacity)
        pool.calibration.numbers[7] *= 0.9
        pool.calibration.numbers[BUCKETS + 7] += 1


def contents(pool: Pool) -> tuple[Any, ...]:
    """Everything that it holds, the order of its contexts too: per length, and per generation."""
    found = []
    for length in LENGTHS:
        rows = pool.table.rows(length)[0]
        count = rows[:, AVERAGED] if length == 1 else np.ones(len(rows))
        known = zip(remembered(pool, length).items(), count.tolist(), rows[:, IS_YOUNG].tolist(), strict=True)
        found.append([*known])
        assert pool.table.young(length) == sum(rows[:, IS_YOUNG])
    return found, pool.calibration.numbers.tolist()


def sets(pool: Pool) -> tuple[Any, ...]:
    """The same without the order, which is that of the array."""
    found, numbers = contents(pool)
    return [sorted(part) for part in found], numbers


def last_tokens(pool: Pool, length: int = 0) -> list[int]:
    """Of the contexts that it holds."""
    return [ending[-1] for ending in remembered(pool, LENGTHS[length])]


EMPTY = contents(fresh_pool())


# Who shares


def test_fresh_pools_share_nothing(model: PreTrainedModel) -> None:
    first = fresh_pool()
    teach(first, 1, 2, 3, 4)
    assert contents(first) != EMPTY
    assert contents(fresh_pool()) == contents(shared_pool(model, "default")) == EMPTY


def test_a_tenant_finds_its_own_pool_again(model: PreTrainedModel) -> None:
    teach(shared_pool(model, "anna"), 1, 2, 3, 4)
    assert len(shared_pool(model, "anna").table) == len(LENGTHS)


def test_tenants_never_see_each_other(model: PreTrainedModel) -> None:
    anna, bert = shared_pool(model, "anna"), shared_pool(model, "bert")
    teach(anna, 1, 2, 3, 4)
    assert contents(bert) == EMPTY
    before = contents(anna)
    teach(bert, 1, 2, 3, 4, following=9)
    assert contents(anna) == before
    assert anna.lock is not bert.lock


def test_models_never_see_each_other(model: PreTrainedModel) -> None:
    twin = copy.deepcopy(model)
    teach(shared_pool(model, "anna"), 1, 2, 3, 4)
    assert contents(shared_pool(twin, "anna")) == EMPTY


@pytest.mark.compat
def test_wrappers_share_with_the_model_inside(model: PreTrainedModel) -> None:
    adapted = SimpleNamespace(get_base_model=lambda: model)
    compiled = SimpleNamespace(_orig_mod=adapted)
    assert shared_pool(model, "anna") is shared_pool(adapted, "anna") is shared_pool(compiled, "anna")


def test_a_deleted_model_takes_its_pools_along(model: PreTrainedModel) -> None:
    short_lived = copy.deepcopy(model)
    table = weakref.ref(shared_pool(short_lived, "anna").table)
    gc.collect()
    assert table() is not None
    del short_lived
    gc.collect()
    assert table() is None


@pytest.mark.parametrize(
    ("this_model", "tenant", "left"),
    [
        (True, "anna", {"model bert", "twin anna"}),
        (True, None, {"twin anna"}),
        (False, "anna", {"model bert"}),
        (False, None, set()),
        (True, "carl", {"model anna", "model bert", "twin anna"}),
    ],
)
def test_dropped_pools_are_forgotten(
    this_model: bool, tenant: str | None, left: set[str], model: PreTrainedModel
) -> None:
    twin = copy.deepcopy(model)
    made = {"model anna": (model, "anna"), "model bert": (model, "bert"), "twin anna": (twin, "anna")}
    before = {name: shared_pool(*key) for name, key in made.items()}
    drop_pools(model if this_model else None, tenant)
    assert {name for name, key in made.items() if shared_pool(*key) is before[name]} == left


@pytest.mark.parametrize("tenant", ["", None, 3])
def test_a_tenant_needs_a_name(tenant: Any, model: PreTrainedModel, tmp_path: Path) -> None:
    for call in (shared_pool, lambda *_: load_pool(model, tmp_path, tenant=tenant)):
        with pytest.raises(ValueError, match="tenant must be"):
            call(model, tenant)
    with pytest.raises(ValueError, match="tenant must be"):
        save_pool(model, tmp_path / "pool", tenant=tenant)


# Size


def test_at_its_capacity_a_pool_forgets_the_half_that_came_first(model: PreTrainedModel) -> None:
    pool = shared_pool(model, "anna", 4)
    for token in range(1, 6):
        teach(pool, token, token, token, token)
    assert all(last_tokens(pool, length) == [3, 4, 5] for length in range(len(LENGTHS)))
    assert shared_pool(model, "anna").table.capacity == 4
    assert shared_pool(model, "bert").table.capacity == fresh_pool().table.capacity == CAPACITY


def test_a_smaller_capacity_forgets_at_once(model: PreTrainedModel) -> None:
    pool = shared_pool(model, "anna")
    for token in range(1, 9):
        teach(pool, token, token, token, token)
    assert shared_pool(model, "anna", 2) is pool
    assert all(last_tokens(pool, length) == [7, 8] for length in range(len(LENGTHS)))
    shared_pool(model, "anna", 6)
    teach(pool, 9, 9, 9, 9)
    assert all(last_tokens(pool, length) == [7, 8, 9] for length in range(len(LENGTHS)))


@pytest.mark.parametrize("capacity", [0, -1, 2.0, True, "3", 10**7 + 1])
def test_a_capacity_is_a_positive_integer(capacity: Any, model: PreTrainedModel, tmp_path: Path) -> None:
    for call in (
        lambda: fresh_pool(capacity),
        lambda: shared_pool(model, "anna", capacity),
        lambda: load_pool(model, tmp_path, capacity=capacity),
    ):
        with pytest.raises(ValueError, match="capacity must be an integer of at least 1"):
            call()


# Files

TOKENS = st.integers(0, VOCAB - 1)


@st.composite
def entries(draw: st.DrawFn, length: int) -> dict[Ending, Entry]:
    """Contexts may begin before the text."""
    contexts = st.tuples(st.integers(0, length - 1), *[TOKENS] * length).map(
        lambda drawn: (*[NOTHING] * drawn[0], *drawn[1 + drawn[0] :])
    )
    table: dict[Ending, Entry] = {}
    for key in draw(st.lists(contexts, unique=True, max_size=6)):
        following = draw(st.lists(TOKENS, unique=True, max_size=TOP))
        chances = st.lists(st.floats(0, 1, width=32), min_size=len(following), max_size=len(following))
        table[key] = following, draw(chances)
    return table


TABLES = st.tuples(*(entries(length) for length in LENGTHS)).map(
    lambda tables: {ending: entry for table in tables for ending, entry in table.items()}
)


@settings(max_examples=40)
@given(TABLES, st.randoms(use_true_random=False))
def test_a_file_brings_everything_back(
    tmp_path_factory: pytest.TempPathFactory, table: dict[Ending, Entry], random: Random
) -> None:
    model, path = tiny_model(LLAMA), tmp_path_factory.mktemp("pool") / "pool.safetensors"
    pool = shared_pool(model, "anna")
    remember(pool, table)
    parts = [pool.table.rows(length) for length in LENGTHS]
    for rows, _ in parts:
        rows[:, IS_YOUNG] = sorted(random.randrange(2) for _ in rows)
    parts[-1][0][:, AVERAGED] = [random.randrange(1, MOST_COUNTED + 1) for _ in parts[-1][0]]
    pool.table.replace(parts)
    pool.calibration.numbers[:BUCKETS] = [random.random() for _ in range(BUCKETS)]
    pool.calibration.numbers[BUCKETS:] = [random.uniform(20, 1e12) for _ in range(BUCKETS)]
    save_pool(model, path, tenant="anna")
    teach(shared_pool(model, "bert"), 1, 2, 3, 4)
    load_pool(model, path, tenant="bert")
    assert contents(shared_pool(model, "bert")) == contents(pool)
    drop_pools()


OBSERVATIONS = st.lists(st.tuples(st.tuples(*[st.integers(0, 3)] * CONTEXT), TOKENS.filter(lambda token: token != 8)))


@settings(max_examples=50)
@given(OBSERVATIONS, OBSERVATIONS, st.integers(1, 12))
def test_a_loaded_pool_goes_on_as_the_saved_one(
    tmp_path_factory: pytest.TempPathFactory, before: list[Any], after: list[Any], capacity: int
) -> None:
    """Whatever it learns from then on, it knows and forgets the same."""
    drop_pools()
    model, path = tiny_model(LLAMA), tmp_path_factory.mktemp("pool") / "pool.safetensors"
    saved = shared_pool(model, "saved", capacity)
    for context, following in before:
        teach(saved, *context, following=following)
    save_pool(model, path, tenant="saved")
    load_pool(model, path, tenant="loaded", capacity=capacity)
    loaded = shared_pool(model, "loaded")
    for context, following in after:
        teach(saved, *context, following=following)
        teach(loaded, *context, following=following)
        assert sets(loaded) == sets(saved)


@pytest.fixture
def saved(model: PreTrainedModel, tmp_path: Path) -> Path:
    """Of a pool that was taught twelve contexts; the pool is gone."""
    pool = shared_pool(model, "default")
    for token in range(1, 13):
        teach(pool, token, 2, 3, token)
    save_pool(model, tmp_path / "folder" / "pool.safetensors")
    drop_pools()
    return tmp_path / "folder" / "pool.safetensors"


def test_averages_at_the_edges_of_their_types_are_saved(model: PreTrainedModel, tmp_path: Path) -> None:
    pool = shared_pool(model, "default")
    remember(pool, {(5,): ([6], [1 + 2**-23])})
    rows, masses = pool.table.rows(1)
    rows[:, AVERAGED] = MOST_COUNTED
    pool.table.replace([(rows, masses)])
    save_pool(model, tmp_path / "pool")
    load_pool(model, tmp_path / "pool", tenant="bert")
    loaded = shared_pool(model, "bert")
    assert remembered(loaded, 1) == {(5,): ([6], [1 + 2**-23])}
    teach(loaded, 1, 2, 3, 5)
    assert loaded.table.rows(1)[0][:, AVERAGED].tolist() == [MOST_COUNTED]


def test_a_loaded_pool_learns_on(saved: Path, model: PreTrainedModel) -> None:
    load_pool(model, str(saved))
    pool = shared_pool(model, "default")
    teach(pool, 1, 2, 3, 1)
    assert remembered(pool, 1)[1,] == ([7, 8], [0.5, 0.25])
    assert 2 in pool.table.rows(1)[0][:, AVERAGED]


def test_a_pool_in_use_gets_what_is_loaded(saved: Path, model: PreTrainedModel) -> None:
    """A request that runs keeps its `Pool`; loading must not leave it with a table that nobody else has."""
    pool = shared_pool(model, "default")
    load_pool(model, saved)
    assert shared_pool(model, "default") is pool
    assert len(pool.table) == 12 * len(LENGTHS)


def test_loading_keeps_the_newest_that_fit(saved: Path, model: PreTrainedModel) -> None:
    shared_pool(model, "anna", 5)
    load_pool(model, saved, tenant="anna")
    load_pool(model, saved, tenant="bert", capacity=5)
    for tenant in ("anna", "bert"):
        pool = shared_pool(model, tenant)
        assert all(last_tokens(pool, length) == [8, 9, 10, 11, 12] for length in range(len(LENGTHS)))


def test_saving_needs_a_pool(model: PreTrainedModel, tmp_path: Path) -> None:
    shared_pool(model, "anna")
    with pytest.raises(ValueError, match="tenant must be a tenant that has a pool on this model, got 'bert'"):
        save_pool(model, tmp_path / "pool", tenant="bert")
    assert not list(tmp_path.iterdir())


def test_a_failed_save_leaves_the_old_file(
    saved: Path, model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(descriptor: int) -> None:
        raise OSError("No space left on device")

    before = saved.read_bytes()
    teach(shared_pool(model, "default"), 1, 2, 3, 4)
    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        save_pool(model, saved)
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


# Files that are refused


def refused(model: PreTrainedModel, path: Path, match: str) -> None:
    """Loading names the file and says what is wrong, and neither makes a pool nor changes one."""
    pool = shared_pool(model, "taught", 20)
    teach(pool, 5, 6, 7, 8)
    before = contents(pool)
    for tenant in ("taught", "unknown"):
        with pytest.raises((ValueError, OSError), match=match) as caught:
            load_pool(model, path, tenant=tenant, capacity=1)
        assert str(path) in str(caught.value)
    assert contents(pool) == before
    assert pool.table.capacity == 20
    assert set(pools._pools[model]) == {"taught"}


def rewrite(path: Path, change: Callable[[dict[str, torch.Tensor], dict[str, str]], Any]) -> None:
    """The same file with other content, and a checksum that agrees with it."""
    tensors, metadata = safefile.read(path)
    change(tensors, metadata)
    safefile.write(path, tensors, metadata)


def test_files_that_cannot_be_read_are_refused(model: PreTrainedModel, tmp_path: Path) -> None:
    refused(model, tmp_path / "none", "No such file")
    refused(model, tmp_path, "directory")
    for text in (b"", b"a letter to the editor, longer than any header"):
        (tmp_path / "text").write_bytes(text)
        refused(model, tmp_path / "text", "not a safetensors file")


def test_other_safetensors_files_are_refused(model: PreTrainedModel, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"weight": torch.ones(2)}, tmp_path / "weights")
    refused(model, tmp_path / "weights", "not a file of lade")
    safefile.write(tmp_path / "table", {"tokens": torch.ones(2)}, {"format": "1"})
    refused(model, tmp_path / "table", "it is not a pool")


@pytest.mark.parametrize("name", ["format", "sources"])
def test_other_formats_are_refused(name: str, saved: Path, model: PreTrainedModel) -> None:
    rewrite(saved, lambda _, metadata: metadata.update({name: "99"}))
    refused(model, saved, "must be of format 2 .*99")


def test_other_models_are_refused(saved: Path) -> None:
    refused(tiny_model(GPT2), saved, "model_type=gpt2, got one with model_type=llama")
    small = tiny_model(LLAMA).config.to_diff_dict() | {"vocab_size": 32, "num_hidden_layers": 1}
    other = type(tiny_model(LLAMA))(type(tiny_model(LLAMA).config)(**small))
    refused(other, saved, "vocab_size=32, num_hidden_layers=1, got one with vocab_size=64, num_hidden_layers=2")


def test_a_truncated_file_is_refused(saved: Path, model: PreTrainedModel) -> None:
    whole = saved.read_bytes()
    for size in range(0, len(whole), 97):
        saved.write_bytes(whole[:size])
        refused(model, saved, "not a safetensors file")


@given(st.data())
def test_a_damaged_file_is_refused_or_harmless(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Any one byte changed: what loads all the same is what was saved (blanks of the header are exchangeable)."""
    model, path = tiny_model(LLAMA), tmp_path_factory.mktemp("pool") / "pool.safetensors"
    pool = shared_pool(model, "taught", 20)
    teach(pool, 1, 2, 3, 4)
    save_pool(model, path, tenant="taught")
    damaged = bytearray(path.read_bytes())
    header = 8 + int.from_bytes(damaged[:8], "little")
    place = st.integers(0, header - 1) | st.integers(0, len(damaged) - 1)
    damaged[data.draw(place)] ^= data.draw(st.integers(1, 255))
    path.write_bytes(damaged)
    try:
        load_pool(model, path, tenant="bert")
    except ValueError:
        refused(model, path, "path=")
    else:
        assert contents(shared_pool(model, "bert")) == contents(pool)
    drop_pools()


Tensors = dict[str, torch.Tensor]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda tensors: tensors.pop("keys.3"), "missing or unknown: keys.3"),
        (lambda tensors: tensors.update(more=torch.ones(1)), "missing or unknown: more"),
        (lambda tensors: tensors.update({"counts.1": tensors["counts.1"].long()}), "1-token contexts has the wrong"),
        (lambda tensors: tensors.update({"counts.1": tensors["counts.1"][1:].clone()}), "1-token contexts has the"),
        (lambda tensors: tensors.update({"keys.2": torch.tensor(1, dtype=torch.int32)}), "2-token contexts has the"),
        (lambda tensors: tensors.update({"keys.2": tensors["keys.3"].clone()}), "2-token contexts has the"),
        (lambda tensors: tensors.update({"tokens.2": torch.tensor(1, dtype=torch.int32)}), "2-token contexts has the"),
        (lambda tensors: tensors["keys.4"][0].fill_(VOCAB), "outside the vocabulary of 64"),
        (lambda tensors: tensors["keys.4"][0].fill_(-2), "outside the vocabulary"),
        (lambda tensors: tensors["keys.4"][0].fill_(-1), "padding where a token must be"),
        (lambda tensors: tensors["keys.4"][0, 1:3].fill_(-1), "padding where a token must be"),
        (lambda tensors: tensors["tokens.4"][0, :1].fill_(VOCAB), "outside the vocabulary"),
        (lambda tensors: tensors["tokens.4"][0, :1].fill_(-2), "outside the vocabulary"),
        (lambda tensors: tensors["tokens.4"][0, :1].fill_(-1), "padding where a token must be"),
        (lambda tensors: tensors["probabilities.1"][0].fill_(float("nan")), "a probability is not"),
        (lambda tensors: tensors["probabilities.1"][0].fill_(1.5), "a probability is not"),
        (lambda tensors: tensors["counts.1"].zero_(), "a count is not positive"),
        (lambda tensors: tensors["keys.1"].fill_(5), "occurs twice"),
        (lambda tensors: tensors["young"][0].fill_(13), "a young generation is larger"),
        (lambda tensors: tensors["young"][0].fill_(-1), "a young generation is larger"),
        (lambda tensors: tensors.update({"young": tensors["young"].int()}), "young generations have the wrong"),
        (lambda tensors: tensors.update({"young": tensors["young"][1:].clone()}), "young generations have the wrong"),
        (lambda tensors: tensors["weights.0"].fill_(float("nan")), "a weight is not between 0 and 1"),
        (lambda tensors: tensors["weights.0"].fill_(2), "a weight is not between 0 and 1"),
        (lambda tensors: tensors["seen.0"].zero_(), "observations is not positive"),
        (lambda tensors: tensors["seen.0"].fill_(float("inf")), "observations is not positive"),
        (lambda tensors: tensors.update({"seen.1": torch.ones(2, dtype=torch.float64)}), "seen have the wrong shapes"),
        (lambda tensors: tensors.update({"weights.1": tensors["weights.1"].float()}), "weights have the wrong shapes"),
    ],
)
def test_impossible_values_are_refused(
    change: Callable[[Tensors], Any], match: str, saved: Path, model: PreTrainedModel
) -> None:
    rewrite(saved, lambda tensors, _: change(tensors))
    refused(model, saved, match)


# Threads


def together(*works: Callable[[], Any]) -> list[Any]:
    """What each gives, all started at once."""
    barrier = threading.Barrier(len(works))

    def started(work: Callable[[], Any]) -> Any:
        barrier.wait()
        return work()

    with ThreadPoolExecutor(len(works)) as threads:
        return list(threads.map(started, works))


def test_threads_get_one_pool(model: PreTrainedModel, restless: None) -> None:
    for number in range(20):
        found = together(*[lambda number=number: shared_pool(model, str(number))] * 8)  # type: ignore[misc]
        assert len(set(map(id, found))) == 1


def test_threads_learn_save_and_load_at_once(model: PreTrainedModel, tmp_path: Path, restless: None) -> None:
    """Every observation, of two new tokens each, enters the tables of all lengths: at any moment all have as many."""
    rounds, files, path = 500, 8, tmp_path / "pool.safetensors"

    def learn(first: int) -> None:
        for number in range(first, first + rounds):
            teach(shared_pool(model, "anna"), 1, number % 5, number // VOCAB, number % VOCAB)

    def save() -> None:
        shared_pool(model, "anna")
        for number in range(files):
            save_pool(model, path, tenant="anna")
            load_pool(model, path, tenant=f"copy {number}")

    def load() -> None:
        for _ in range(files):
            load_pool(model, path, tenant="anna")

    together(lambda: learn(0), lambda: learn(rounds), save)
    assert observations(shared_pool(model, "anna")) == [2 * rounds] * len(LENGTHS)
    copies = [observations(shared_pool(model, f"copy {number}")) for number in range(files)]
    assert all(len(set(counts)) == 1 for counts in copies)
    together(lambda: learn(0), lambda: learn(rounds), load)
    assert len(set(observations(shared_pool(model, "anna"))[:-1])) == 1


def observations(pool: Pool) -> list[int]:
    """Contexts of each length, and how often the averages were taught."""
    *long, short = [pool.table.rows(length)[0] for length in LENGTHS]
    return [*map(len, long), int(short[:, AVERAGED].sum())]


def test_tables_are_used_under_the_lock(saved: Path, model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    pool, used = shared_pool(model, "default"), set[str]()

    def checked(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def called(self: PredictionTable, *arguments: Any) -> Any:
            assert pool.lock._is_owned(), name
            used.add(name)
            return method(self, *arguments)

        return called

    for name in ("rows", "replace", "resize"):
        monkeypatch.setattr(PredictionTable, name, checked(name, getattr(PredictionTable, name)))
    for use, expected in (
        (lambda: load_pool(model, saved), {"replace", "resize", "rows"}),
        (lambda: save_pool(model, saved), {"rows"}),
        (lambda: shared_pool(model, "default", 3), {"replace", "resize", "rows"}),
    ):
        use()
        assert used == expected
        used.clear()


def test_the_capacity_holds_while_threads_learn(model: PreTrainedModel, restless: None) -> None:
    def learn(offset: int) -> None:
        for number in range(200):
            teach(shared_pool(model, "anna", 10), offset, number, number, number)

    together(lambda: learn(0), lambda: learn(1))
    table = shared_pool(model, "anna").table
    assert all(5 <= len(table.rows(length)[0]) <= 10 for length in LENGTHS)


def test_both_functions_are_public() -> None:
    assert lade.save_pool is save_pool
    assert lade.load_pool is load_pool
