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

import pytest
import torch
from families import BRANCHABLE, VOCAB
from hypothesis import given
from hypothesis import strategies as st
from tiny import tiny_model
from transformers import PreTrainedModel

import lade
from lade.config.settings import CAPACITY
from lade.files import safefile
from lade.memory import pools
from lade.memory.poolfile import AVERAGED, MOST_SEEN, Table
from lade.memory.pools import Pool, drop_pools, fresh_pool, load_pool, save_pool, shared_pool
from lade.memory.recycle import CONTEXT, LENGTHS, NOTHING, TOP
from lade.memory.sources import FromPredictions, stages

LLAMA, GPT2 = (next(family for family in BRANCHABLE if family.name == name) for name in ("llama", "gpt2"))


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return tiny_model(LLAMA)


@pytest.fixture(autouse=True)
def no_pools() -> Iterator[None]:
    """None at the start of a test, and none left behind."""
    drop_pools()
    yield
    drop_pools()


def teach(pool: Pool, *context: int, following: int = 7) -> None:
    with pool.lock:
        pool.table.learn(context, ([following, 8], [0.5, 0.25]))  # type: ignore[arg-type]
        pool.table.forget()
        pool.calibration.learn([(2, 0, 0.5), (5, 0, 0.25)])


def contents(pool: Pool) -> tuple[Any, ...]:
    """Everything that it holds and that can speak, the order of its contexts too."""
    young = [list(table.items()) for table in pool.table.young]
    old = [
        [entry for entry in old.items() if entry[0] not in young]
        for old, young in zip(pool.table.old, pool.table.young, strict=True)
    ]
    return copy.deepcopy((old, young, pool.calibration.weights, pool.calibration.seen))


def last_tokens(pool: Pool, length: int = 0) -> list[int]:
    """Of the contexts that it holds."""
    return [key[-1] for half in (pool.table.old, pool.table.young) for key in half[length]]


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
def entries(draw: st.DrawFn, length: int) -> Table:
    """Of one half; contexts may begin before the text, and averages alone need double precision."""
    averaged = length == AVERAGED
    chances = st.floats(0, 1, width=64 if averaged else 32)
    contexts = st.tuples(st.integers(0, length - 1), *[TOKENS] * length).map(
        lambda drawn: (*[NOTHING] * drawn[0], *drawn[1 + drawn[0] :])
    )
    table: Table = {}
    for key in draw(st.lists(contexts, unique=True, max_size=6)):
        following = draw(st.lists(TOKENS, unique=True, max_size=TOP))
        said = following, draw(st.lists(chances, min_size=len(following), max_size=len(following)))
        table[key] = (*said, draw(st.integers(1, MOST_SEEN))) if averaged else said
    return table


HALVES = st.tuples(*(entries(length) for length in LENGTHS)).map(list)


@given(HALVES, HALVES, st.randoms(use_true_random=False))
def test_a_file_brings_everything_back(
    tmp_path_factory: pytest.TempPathFactory, old: list[Table], young: list[Table], random: Random
) -> None:
    model, path = tiny_model(LLAMA), tmp_path_factory.mktemp("pool") / "pool.safetensors"
    pool = shared_pool(model, "anna")
    pool.table.old[:], pool.table.young[:] = old, young
    pool.calibration.weights = [[random.random() for _ in stage.priors] for stage in stages()]
    pool.calibration.seen = [[random.uniform(20, 1e12) for _ in stage.priors] for stage in stages()]
    save_pool(model, path, tenant="anna")
    teach(shared_pool(model, "bert"), 1, 2, 3, 4)
    load_pool(model, path, tenant="bert")
    assert contents(shared_pool(model, "bert")) == contents(pool)
    drop_pools()


OBSERVATIONS = st.lists(st.tuples(st.tuples(*[st.integers(0, 3)] * CONTEXT), TOKENS.filter(lambda token: token != 8)))


@given(OBSERVATIONS, OBSERVATIONS, st.integers(1, 12))
def test_a_loaded_pool_goes_on_as_the_saved_one(
    tmp_path_factory: pytest.TempPathFactory, before: list[Any], after: list[Any], capacity: int
) -> None:
    """Whatever it learns from then on, it knows and forgets the same."""
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
        expected = list(FromPredictions(0, saved.table).expect(context, 0))
        assert list(FromPredictions(0, loaded.table).expect(context, 0)) == expected
        assert contents(loaded) == contents(saved)
    drop_pools()


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
    with pool.lock:
        pool.table.young[-1][(5,)] = ([6], [1 + 2**-52], MOST_SEEN + 5)
    save_pool(model, tmp_path / "pool")
    load_pool(model, tmp_path / "pool", tenant="bert")
    assert shared_pool(model, "bert").table.young[-1] == {(5,): ([6], [1 + 2**-52], MOST_SEEN)}


def test_a_loaded_pool_learns_on(saved: Path, model: PreTrainedModel) -> None:
    load_pool(model, str(saved))
    pool = shared_pool(model, "default")
    teach(pool, 1, 2, 3, 1)
    assert pool.table.young[-1][(1,)] == ([7, 8], [0.5, 0.25], 2)


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
    pairs = zip(pool.table.old, pool.table.young, strict=True)
    *long, short = [old | young for old, young in pairs]
    return [*map(len, long), sum(count for _, _, count in short.values())]


class Guarded(list[Any]):
    """Half a table that may be walked and changed under its lock alone."""

    def __init__(self, half: list[Any], lock: Any, used: set[str]) -> None:
        super().__init__(half)
        self.lock, self.used = lock, used

    def check(self, use: str) -> None:
        assert self.lock._is_owned(), use
        self.used.add(use)

    def __iter__(self) -> Iterator[Any]:
        self.check("walk")
        return super().__iter__()

    def __setitem__(self, index: Any, value: Any) -> None:
        self.check("change")
        super().__setitem__(index, value)


def test_tables_are_used_under_the_lock(saved: Path, model: PreTrainedModel) -> None:
    pool, used = shared_pool(model, "default"), set[str]()
    pool.table.old, pool.table.young = (Guarded(half, pool.lock, used) for half in (pool.table.old, pool.table.young))
    for use, expected in (
        (lambda: load_pool(model, saved), {"walk", "change"}),
        (lambda: save_pool(model, saved), {"walk"}),
        (lambda: shared_pool(model, "default", 3), {"walk", "change"}),
    ):
        use()
        assert used == expected
        used.clear()


def test_the_capacity_holds_while_threads_learn(model: PreTrainedModel, restless: None) -> None:
    def learn(offset: int) -> None:
        for number in range(1000):
            teach(shared_pool(model, "anna", 10), offset, number, number, number)

    together(lambda: learn(0), lambda: learn(1))
    table = shared_pool(model, "anna").table
    assert all(5 <= len(old) + len(young) <= 10 for old, young in zip(table.old, table.young, strict=True))


def test_both_functions_are_public() -> None:
    assert lade.save_pool is save_pool
    assert lade.load_pool is load_pool
