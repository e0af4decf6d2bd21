"""The cache against a plain list of tokens per row, and its export against what transformers itself would hold.

Every token is a number that occurs once, and its keys and values tell which token, layer and head they belong to.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import DynamicCache, Gemma3TextConfig

from lade.target import layers as layers_module
from lade.target import store as store_module
from lade.target.cache import TreeCache
from lade.target.layers import TreeLayer
from lade.target.upload import Upload

HEADS, HEAD_SIZE = 2, 3
FULL, SLIDING = "full_attention", "sliding_attention"
KINDS = ([FULL, FULL], [SLIDING, SLIDING], [SLIDING, FULL, SLIDING], [FULL])


def config_of(kinds: Sequence[str], window: int) -> Gemma3TextConfig:
    return Gemma3TextConfig(num_hidden_layers=len(kinds), layer_types=list(kinds), sliding_window=window)


def keys_of(tokens: Sequence[Sequence[int]], layer: int) -> Tensor:
    """[B, H, T, D]; the values are their negatives."""
    ids = torch.tensor([list(row) for row in tokens], dtype=torch.float64)[:, None, :, None]
    heads = torch.arange(HEADS, dtype=torch.float64)[:, None, None]
    return (ids * 100 + layer * 10 + heads).expand(-1, -1, -1, HEAD_SIZE)


def feed(cache: DynamicCache | TreeCache, tokens: Sequence[Sequence[int]]) -> list[tuple[Tensor, Tensor]]:
    """What a model's forward does to a cache; returns what each layer's attention would look at."""
    keys = [keys_of(tokens, layer) for layer in range(len(cache.layers))]
    return [cache.update(states, -states, layer) for layer, states in enumerate(keys)]


@contextmanager
def tight(slack: int) -> Iterator[None]:
    """Little room, so that slots grow and windows are compacted often."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layers_module, "SLACK", slack)
        patch.setattr(store_module, "SPARE", 2)
        yield


class Rows:
    """A tree cache beside the lists of tokens that its slots must hold; checks after every step that they agree."""

    def __init__(
        self,
        kinds: Sequence[str],
        window: int,
        spare: int,
        rows: int,
        imported: int,
        packed: bool = True,
        margin: int = 0,
    ) -> None:
        self.window, self.spare, self.widest, self.packed, self.margin = window, spare, 1, packed, margin
        self.config = config_of(kinds, window)
        self.opened: set[int] = set()  # without a prefill, which stores the window alone
        self.fresh = count(1)
        self.texts: dict[int, list[int]] = {slot: [] for slot in range(rows)}
        self.stock = DynamicCache(config=self.config)
        if imported:
            feed(self.stock, self._extend(imported))
        self.cache = TreeCache(self.stock, self.config)
        self.cache.pack(packed)
        for group in self.cache.groups.values():
            group.margin = margin

    def _extend(self, tokens: int) -> list[list[int]]:
        new = [[next(self.fresh) for _ in range(tokens)] for _ in self.texts]
        for text, row in zip(self.texts.values(), new, strict=True):
            text += row
        return new

    def _layers(self) -> list[TreeLayer]:
        return self.cache.own_layers()

    def prefill(self, tokens: int) -> None:
        seen = len(self.texts[0])
        sizes = [layer.get_mask_sizes(tokens) for layer in self.cache.layers]
        looks = feed(self.cache, self._extend(tokens))
        for index, ((length, offset), (keys, values)) in enumerate(zip(sizes, looks, strict=True)):
            expected = keys_of([text[offset:] for text in self.texts.values()], index)
            assert length == keys.shape[2]
            assert torch.equal(keys, expected)
            assert torch.equal(values, -expected)
            assert offset <= (max(0, seen - self.window + 1) if self.cache.layers[index].is_sliding else 0)
        assert self.cache.get_seq_length() == seen + tokens

    def step(self, slots: Sequence[int], sizes: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        """A forward of a tree of so many nodes in each of the slots; padded ones have the largest size."""
        sizes = list(sizes) if self.packed else [max(sizes)] * len(sizes)
        self.widest = max(self.widest, *sizes)
        trees = [[next(self.fresh) for _ in range(nodes)] for nodes in sizes]
        self.cache.prepare(slots, sizes, [0] * len(slots))
        self._settle()
        fed = [[token for tree in trees for token in tree]] if self.packed else trees
        for index, (keys, values) in enumerate(feed(self.cache, fed)):
            group = self._layers()[index].group
            assert self._layers()[index].get_mask_sizes(0) == (keys.shape[2], 0)
            assert torch.equal(values, -keys)
            for row, (slot, tree) in enumerate(zip(slots, trees, strict=True)):
                own = keys[0, :, group.slabs.offsets[slot] :] if self.packed else keys[row]
                expected = keys_of([self.texts[slot][group.starts[slot] :] + tree], index)[0]
                assert torch.equal(own[:, : expected.shape[1]], expected)
        self.cache.keep(slots, paths)
        for slot, tree, path in zip(slots, trees, paths, strict=True):
            self.texts[slot] += [tree[node] for node in path]

    def _settle(self) -> None:
        """As a forward does it: with what it sent to the device."""
        upload = Upload()
        upload.add([7, 7])
        self.cache.send(upload)
        upload.send(torch.device("cpu"))
        self.cache.settle()

    def open(self, slot: int, tokens: int, most: int | None) -> None:
        self.cache.leave_prefill()
        self.cache.open([slot], tokens, most)
        self.texts[slot] = []
        self.opened.add(slot)

    def close(self, slot: int) -> None:
        self.cache.close(slot)
        del self.texts[slot]

    def check(self) -> None:
        self.cache.settle()
        assert self.cache.lengths == {slot: len(text) for slot, text in self.texts.items()}
        for index, layer in enumerate(self._layers()):
            if layer.keys is not None:
                self._check_contents(index, layer)
                self._check_memory(layer)

    def _check_contents(self, index: int, layer: TreeLayer) -> None:
        group = layer.group
        for slot, text in self.texts.items():
            start = group.starts[slot]
            assert group.lengths[slot] == len(text)
            stored = self.window - 1 + (self.margin if slot in self.opened else 0)
            assert 0 <= start <= (max(0, len(text) - stored) if layer.is_sliding else 0)
            expected = keys_of([text[start:]], index)[0]
            assert torch.equal(group.tokens(layer.keys, slot, start), expected)
            assert torch.equal(group.tokens(layer.values, slot, start), -expected)

    def _check_memory(self, layer: TreeLayer) -> None:
        slabs = layer.group.slabs
        assert layer.keys.shape[2] == layer.values.shape[2] == slabs.total
        end = 0
        for slot in slabs.in_order():
            assert slabs.offsets[slot] >= end
            end = slabs.offsets[slot] + slabs.capacities[slot]
            if layer.is_sliding:
                stored = self.window + self.margin
                assert slabs.capacities[slot] <= stored + max(2 * self.spare, self.spare + self.widest)
        assert end <= slabs.total
        if not self.packed:
            assert len(set(slabs.capacities.values())) <= 1


@st.composite
def started(draw: st.DrawFn) -> tuple[Rows, int]:
    """Slots behind a prefill, in chunks, maybe on top of a user's own cache; and the slack they were made with."""
    kinds, window, spare = draw(st.sampled_from(KINDS)), draw(st.integers(2, 6)), draw(st.integers(0, 3))
    with tight(spare):
        rows = Rows(
            kinds,
            window,
            spare,
            draw(st.integers(1, 3)),
            imported=draw(st.integers(0, 9)),
            packed=draw(st.booleans()),
            margin=draw(st.integers(0, 4)),
        )
        for tokens in draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)):
            rows.prefill(tokens)
        rows.cache.end_prefill(range(len(rows.texts)), draw(st.none() | st.integers(1, 40)))
    rows.check()
    return rows, spare


def random_step(rows: Rows, data: st.DataObject) -> None:
    slots = data.draw(st.lists(st.sampled_from(sorted(rows.texts)), min_size=1, unique=True))
    sizes = [data.draw(st.integers(1, 7)) for _ in slots]
    kept = [data.draw(st.sets(st.integers(1, nodes - 1))) if nodes > 1 else set() for nodes in sizes]
    rows.step(slots, sizes, [[0, *sorted(each)] if data.draw(st.integers(0, 5)) else [] for each in kept])


@settings(max_examples=50)
@given(started(), st.data())
def test_slots_hold_their_texts(start: tuple[Rows, int], data: st.DataObject) -> None:
    """Steps of any slots in any order, among slots that are closed and opened again."""
    rows, spare = start
    with tight(spare):
        for _ in range(data.draw(st.integers(0, 12))):
            what = data.draw(st.integers(0, 5))
            if what == 0:
                rows.open(
                    max(rows.texts, default=0) + 1,
                    data.draw(st.integers(0, 9)),
                    data.draw(st.none() | st.integers(1, 30)),
                )
            elif what == 1 and rows.texts:
                rows.close(data.draw(st.sampled_from(sorted(rows.texts))))
            elif rows.texts:
                random_step(rows, data)
            if data.draw(st.booleans()):
                rows.check()
        rows.check()


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
def test_a_slot_that_opens_before_a_path_is_kept(packed: bool) -> None:
    """The others move to make room for it, and what is kept moves with them."""
    rows = Rows([FULL, SLIDING], window=4, spare=64, rows=2, imported=0, packed=packed)
    rows.prefill(5)
    rows.cache.end_prefill([0, 1])
    rows.close(0)
    tree = [next(rows.fresh) for _ in range(4)]
    rows.cache.prepare([1], [4], [0])
    rows.cache.settle()
    feed(rows.cache, [tree])
    rows.open(2, 700, None)
    assert rows.cache.groups[None].slabs.offsets[1] == 0
    rows.cache.keep([1], [[0, 2, 3]])
    rows.texts[1] += [tree[0], *tree[2:]]
    rows.check()


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
def test_nothing_of_a_closed_slot_is_left_in_the_next_one(packed: bool) -> None:
    """A NaN there would spread through masks."""
    rows = Rows([FULL, SLIDING], window=4, spare=64, rows=2, imported=0, packed=packed)
    rows.prefill(5)
    rows.cache.end_prefill([0, 1])
    layers = rows._layers()
    for layer in layers:
        layer.keys.fill_(torch.nan)
    rows.close(0)
    rows.open(2, 5, None)
    rows.cache.settle()
    assert [layer.keys.shape for layer in layers] == [layer.values.shape for layer in layers]
    for layer in layers:
        offset = layer.group.slabs.offsets[2]
        assert offset == 0
        assert not layer.keys[0, :, offset : offset + layer.group.slabs.capacities[2]].any()


# Export


def exported(rows: Rows, order: Sequence[int]) -> DynamicCache:
    """Into the cache that the rows began with, as a user's own cache is extended in place."""
    layers = list(rows.stock.layers)
    rows.cache.export(rows.stock, order)
    assert all(now is before for now, before in zip(rows.stock.layers, layers, strict=False))
    return rows.stock


def assert_same_cache(ours: DynamicCache, theirs: DynamicCache) -> None:
    assert ours.get_seq_length() == theirs.get_seq_length()
    for own, stock in zip(ours.layers, theirs.layers, strict=True):
        assert type(own) is type(stock)
        assert own.get_seq_length() == stock.get_seq_length()
        assert own.get_mask_sizes(3) == stock.get_mask_sizes(3)
        assert torch.equal(own.keys, stock.keys)
        assert torch.equal(own.values, stock.values)


@pytest.mark.compat
@settings(max_examples=40)
@given(started(), st.data())
def test_export_is_what_plain_decoding_holds(start: tuple[Rows, int], data: st.DataObject) -> None:
    """Rows of equal length: the stock cache after one token at a time, and after going on from there."""
    rows, spare = start
    with tight(spare):
        for _ in range(data.draw(st.integers(0, 6))):
            nodes = data.draw(st.integers(1, 7))
            kept = data.draw(st.integers(1, nodes))
            paths = [[0, *sorted(data.draw(_subsets(nodes, kept - 1)))] for _ in rows.texts]
            rows.step(data.draw(st.permutations(sorted(rows.texts))), [nodes] * len(paths), paths)
    order = data.draw(st.permutations(range(len(rows.texts))))
    ours, theirs = exported(rows, order), DynamicCache(config=rows.config)
    texts = [rows.texts[row] for row in order]
    for index in range(len(texts[0])):
        feed(theirs, [[text[index]] for text in texts])
    assert_same_cache(ours, theirs)
    more = [[10_000 + 10 * row + index for index in range(5)] for row in range(len(texts))]
    for (keys, values), (stock_keys, stock_values) in zip(feed(ours, more), feed(theirs, more), strict=True):
        assert torch.equal(keys, stock_keys)
        assert torch.equal(values, stock_values)
    assert_same_cache(ours, theirs)


def _subsets(nodes: int, size: int) -> st.SearchStrategy[set[int]]:
    return st.permutations(range(1, nodes)).map(lambda order: set(order[:size]))


@pytest.mark.parametrize("kinds", KINDS)
def test_a_user_s_cache_is_untouched_until_the_export(kinds: list[str]) -> None:
    rows = Rows(kinds, window=4, spare=64, rows=2, imported=7)
    before = [layer.keys.clone() for layer in rows.stock.layers]
    rows.prefill(3)
    rows.cache.end_prefill([0, 1])
    rows.step([0, 1], [3, 3], [[0, 2], [0]])
    assert all(torch.equal(layer.keys, keys) for layer, keys in zip(rows.stock.layers, before, strict=True))


def test_a_cache_made_without_a_configuration() -> None:
    """It has no layers yet, and none of them will slide, whatever the model."""
    config = config_of([SLIDING, FULL], window=3)
    stock = DynamicCache()
    cache = TreeCache(stock, config)
    assert [layer.window for layer in cache.layers] == [None, None]
    text = list(range(1, 9))
    feed(cache, [text])
    cache.end_prefill([0])
    cache.export(stock, [0])
    theirs = DynamicCache()
    for layer in range(2):
        theirs.update(keys_of([text], layer), -keys_of([text], layer), layer)
    assert_same_cache(stock, theirs)


# Growth


@pytest.fixture
def dirty_memory() -> Iterator[None]:
    """Memory that nobody wrote holds NaN."""
    torch.use_deterministic_algorithms(True)
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("dirty_memory")
def test_a_prefill_makes_its_buffers_at_once() -> None:
    """With the first full layer's all of them; one that turns out to be unlike them, or gets no keys, does without."""
    config = config_of([FULL, FULL, SLIDING, FULL, FULL, SLIDING], 4)
    cache = TreeCache(DynamicCache(config=config), config)
    cache.begin_prefill()
    keys = [keys_of([range(9), range(9, 18)], layer) for layer in range(4)]
    keys[3] = keys[3][:, :1]
    prefixes = [layer.prefix for layer in cache.own_layers()]
    cache.update(keys[0], -keys[0], 0)
    reserved = {layer: prefixes[layer].reserved for layer in range(1, 5)}
    assert [buffers is not None for buffers in reserved.values()] == [True, False, True, True]
    for layer in range(1, 4):
        cache.update(keys[layer], -keys[layer], layer)
    assert prefixes[5].reserved is None
    assert prefixes[1].keys is reserved[1][0]
    assert prefixes[1].values is reserved[1][1]
    cache.end_prefill([0, 1])
    for layer in (0, 1, 3):
        group, own = cache.layers[layer].group, cache.layers[layer]
        for slot in range(2):
            assert group.tokens(own.keys, slot, 0).equal(keys[layer][slot])
            assert group.tokens(own.values, slot, 0).equal(-keys[layer][slot])
    assert cache.layers[4].keys is None


@pytest.mark.usefixtures("dirty_memory")
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
def test_growth_is_by_doubling_and_clean(packed: bool) -> None:
    rows = Rows([FULL], window=4, spare=64, rows=2, imported=0, packed=packed)
    rows.prefill(44)
    rows.cache.end_prefill([0, 1])
    capacities = {0: set(), 1: set()}
    for _ in range(300):
        rows.step([0, 1], [4, 1], [[0, 3], [0]])
        for slot, found in capacities.items():
            found.add(rows.cache.groups[None].slabs.capacities[slot])
        assert not rows.cache.layers[0].keys.isnan().any()
    rows.check()
    assert capacities[0] == {300, 600, 1200}
    assert capacities[1] == ({300, 600} if packed else {300, 600, 1200})


def test_a_slot_grows_no_further_than_it_needs_to() -> None:
    """Up to the most tokens it may hold, and a tree behind them."""
    rows = Rows([FULL], window=4, spare=64, rows=2, imported=0)
    rows.prefill(10)
    rows.cache.end_prefill([0, 1], most=300)
    rows.open(2, 10, 20)
    slabs = rows.cache.groups[None].slabs
    assert slabs.capacities == {0: 266, 1: 266, 2: 84}
    for _ in range(145):
        rows.step([0, 1], [60, 1], [[0, 1], [0]])
    assert slabs.capacities == {0: 364, 1: 266, 2: 84}
    assert rows.cache.layers[0].keys.shape[2] == slabs.total == 364 + 266 + 84
    for _ in range(6):
        rows.step([0], [80], [[0, 1]])  # more than was said
    assert slabs.capacities[0] == 300 + 80 + 64
    rows.check()


def test_memory_of_a_closed_slot_is_used_again() -> None:
    rows = Rows([FULL], window=4, spare=64, rows=3, imported=0)
    rows.prefill(4)
    rows.cache.end_prefill([0, 1, 2])
    total = rows.cache.groups[None].slabs.total
    for slot in (1, 0, 2):
        rows.close(slot)
        rows.open(slot + 10, 4, None)
    rows.step([10, 11, 12], [2, 5, 3], [[0, 1], [0, 3], [0]])
    rows.check()
    assert rows.cache.groups[None].slabs.total == total
    rows.close(10)
    rows.close(11)
    rows.open(7, 400, 400)  # fits where two were
    assert rows.cache.groups[None].slabs.total == total


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
@pytest.mark.parametrize("window", [1, 2, 5])
def test_sliding_layers_stay_small(window: int, packed: bool) -> None:
    """A long text with a long tree: window plus slack plus tree, however long; and a step in ten moves anything."""
    rows = Rows([SLIDING], window, spare=12, rows=2, imported=0, packed=packed)
    with tight(12):
        rows.prefill(50)
        rows.cache.end_prefill([0, 1])
        group = rows.cache.groups[window]
        starts = []
        for _ in range(200):
            rows.step([0, 1], [9, 9], [[0], [0, 8]])
            starts.append(group.starts[0])
    assert max(group.slabs.capacities.values()) <= window + 24
    assert len(set(starts)) <= 200 / 12 + 2
    rows.check()


def test_a_long_prompt_leaves_no_trace_in_a_sliding_layer() -> None:
    rows = Rows([SLIDING], window=4, spare=64, rows=1, imported=0)
    rows.prefill(5000)
    rows.cache.end_prefill([0])
    assert rows.cache.layers[0].keys.shape[1] <= 4 + 2 * 64
