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
from lade.target.cache import TreeCache
from lade.target.layers import LayerGroup, TreeLayer

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
def slack(tokens: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layers_module, "SLACK", tokens)
        yield


class Rows:
    """A tree cache beside the lists of tokens that its rows must hold; checks after every step that they agree."""

    def __init__(self, kinds: Sequence[str], window: int, spare: int, rows: int, imported: int) -> None:
        self.window, self.spare, self.widest = window, spare, 1
        self.config = config_of(kinds, window)
        self.fresh = count(1)
        self.texts: list[list[int]] = [[] for _ in range(rows)]
        self.stock = DynamicCache(config=self.config)
        if imported:
            feed(self.stock, self._extend(imported))
        self.cache = TreeCache(self.stock, self.config)
        self.used = dict.fromkeys(self._layers(), 0)  # key indices that were ever written, from 0 on

    def _extend(self, tokens: int) -> list[list[int]]:
        new = [[next(self.fresh) for _ in range(tokens)] for _ in self.texts]
        for text, row in zip(self.texts, new, strict=True):
            text += row
        return new

    def _layers(self) -> list[TreeLayer]:
        return [layer for layer in self.cache.layers if isinstance(layer, TreeLayer)]

    def prefill(self, tokens: int) -> None:
        seen = len(self.texts[0])
        sizes = [layer.get_mask_sizes(tokens) for layer in self.cache.layers]
        looks = feed(self.cache, self._extend(tokens))
        for index, ((length, offset), (keys, values)) in enumerate(zip(sizes, looks, strict=True)):
            expected = keys_of([text[offset:] for text in self.texts], index)
            assert length == keys.shape[2]
            assert torch.equal(keys, expected)
            assert torch.equal(values, -expected)
            assert offset <= (max(0, seen - self.window + 1) if self.cache.layers[index].is_sliding else 0)
        assert self.cache.get_seq_length() == seen + tokens
        for layer in self._layers():
            self.used[layer] = max(self.used[layer], layer.length - layer.start)

    def step(self, rows: int, nodes: int, paths: Sequence[Sequence[int]]) -> None:
        self.widest = max(self.widest, nodes)
        trees = [[next(self.fresh) for _ in range(nodes)] for _ in range(rows)]
        self.cache.prepare(rows, nodes)
        for index, (keys, values) in enumerate(feed(self.cache, trees)):
            layer = self._layers()[index]
            self.used[layer] = max(self.used[layer], keys.shape[2])
            assert layer.get_mask_sizes(nodes) == (keys.shape[2], 0)
            assert torch.equal(values, -keys)
            for row, tree in enumerate(trees):
                held, start = layer.group.held(row), layer.group.starts[row]
                expected = keys_of([self.texts[row][start:] + tree], index)[0]
                assert torch.equal(keys[row, :, : held + nodes], expected)
        self.cache.keep(paths)
        for row, path in enumerate(paths):
            self.texts[row] += [trees[row][node] for node in path]
        self.check()

    def swap(self, one: int, other: int) -> None:
        self.cache.swap(one, other)
        self.texts[one], self.texts[other] = self.texts[other], self.texts[one]
        self.check()

    def check(self) -> None:
        assert self.cache.lengths == [len(text) for text in self.texts]
        for index, layer in enumerate(self._layers()):
            self._check_contents(index, layer, layer.group)
            self._check_memory(layer)

    def _check_contents(self, index: int, layer: TreeLayer, group: LayerGroup) -> None:
        for row, text in enumerate(self.texts):
            start = group.starts[row]
            assert group.lengths[row] == len(text)
            assert 0 <= start <= (max(0, len(text) - self.window + 1) if layer.is_sliding else 0)
            expected = keys_of([text[start:]], index)[0]
            assert torch.equal(layer.keys[row, :, : group.held(row)], expected)
            assert torch.equal(layer.values[row, :, : group.held(row)], -expected)

    def _check_memory(self, layer: TreeLayer) -> None:
        capacity = layer.keys.shape[2]
        assert not layer.keys[:, :, self.used[layer] :].any()
        assert not layer.values[:, :, self.used[layer] :].any()
        if layer.is_sliding:
            assert capacity <= self.window + max(2 * self.spare, self.spare + self.widest)
        else:
            assert capacity < 2 * self.used[layer] or capacity == 1


@st.composite
def started(draw: st.DrawFn) -> tuple[Rows, int]:
    """Rows behind a prefill, in chunks, maybe on top of a user's own cache; and the slack they were made with."""
    kinds, window, spare = draw(st.sampled_from(KINDS)), draw(st.integers(2, 6)), draw(st.integers(0, 3))
    with slack(spare):
        rows = Rows(kinds, window, spare, rows=draw(st.integers(1, 3)), imported=draw(st.integers(0, 9)))
        for tokens in draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)):
            rows.prefill(tokens)
        rows.cache.grow_trees(len(rows.texts))
    rows.check()
    return rows, spare


def take_steps(rows: Rows, data: st.DataObject, steps: int = 8) -> None:
    for _ in range(data.draw(st.integers(0, steps))):
        if data.draw(st.booleans()):
            rows.swap(*(data.draw(st.integers(0, len(rows.texts) - 1)) for _ in range(2)))
        active, nodes = data.draw(st.integers(1, len(rows.texts))), data.draw(st.integers(1, 7))
        kept = st.sets(st.integers(1, nodes - 1)) if nodes > 1 else st.just(set())
        rows.step(active, nodes, [[0, *sorted(data.draw(kept))] for _ in range(active)])


@settings(max_examples=150)
@given(started(), st.data())
def test_rows_hold_their_texts(start: tuple[Rows, int], data: st.DataObject) -> None:
    with slack(start[1]):
        take_steps(start[0], data)


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
@settings(max_examples=100)
@given(started(), st.data())
def test_export_is_what_plain_decoding_holds(start: tuple[Rows, int], data: st.DataObject) -> None:
    """Rows of equal length: the stock cache after one token at a time, and after going on from there."""
    rows, spare = start
    with slack(spare):
        for _ in range(data.draw(st.integers(0, 6))):
            nodes = data.draw(st.integers(1, 7))
            kept = data.draw(st.integers(1, nodes))
            paths = [[0, *sorted(data.draw(_subsets(nodes, kept - 1)))] for _ in rows.texts]
            rows.step(len(rows.texts), nodes, paths)
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
    rows.cache.grow_trees(2)
    rows.step(2, 3, [[0, 2], [0]])
    assert all(torch.equal(layer.keys, keys) for layer, keys in zip(rows.stock.layers, before, strict=True))


def test_a_cache_made_without_a_configuration() -> None:
    """It has no layers yet, and none of them will slide, whatever the model."""
    config = config_of([SLIDING, FULL], window=3)
    stock = DynamicCache()
    cache = TreeCache(stock, config)
    assert [layer.window for layer in cache.layers] == [None, None]
    text = list(range(1, 9))
    feed(cache, [text])
    cache.grow_trees(1)
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
def test_growth_is_by_doubling_and_clean() -> None:
    rows = Rows([FULL], window=4, spare=64, rows=2, imported=0)
    rows.prefill(5)
    rows.cache.grow_trees(2)
    capacities = set()
    for _ in range(300):
        rows.step(2, 4, [[0, 3], [0]])
        capacities.add(rows.cache.layers[0].keys.shape[2])
        assert not rows.cache.layers[0].keys.isnan().any()
    assert capacities == {16, 32, 64, 128, 256, 512, 1024}


@pytest.mark.parametrize("window", [1, 2, 5])
def test_sliding_layers_stay_small(window: int) -> None:
    """A long text with a long tree: window plus slack plus tree, however long; and a step in ten moves anything."""
    rows = Rows([SLIDING], window, spare=12, rows=2, imported=0)
    with slack(12):
        rows.prefill(50)
        rows.cache.grow_trees(2)
        layer = rows.cache.layers[0]
        starts = []
        for _ in range(200):
            rows.step(2, 9, [[0], [0, 8]])
            starts.append(tuple(layer.group.starts))
    assert layer.keys.shape[2] <= window + 24
    assert len({start[0] for start in starts}) <= 200 / 12 + 2


def test_a_long_prompt_leaves_no_trace_in_a_sliding_layer() -> None:
    rows = Rows([SLIDING], window=4, spare=64, rows=1, imported=0)
    rows.prefill(5000)
    assert rows.cache.layers[0].keys.shape[2] <= 4 + 2 * 64
