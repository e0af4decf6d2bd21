"""Tree masks of padded and of packed rows, against a formula per element in plain Python; where the tree is a chain,
transformers' own masks are another way to the same.
"""

from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import DynamicCache, Gemma3TextConfig, Llama4TextConfig, LlamaConfig, MistralConfig, PretrainedConfig
from transformers.masking_utils import create_masks_for_generate

from lade.target import layers as layers_module
from lade.target.cache import TreeCache
from lade.target.masks import MaskKind, Sight, TreeMasks, layer_kinds
from lade.target.pieces import Piece
from lade.target.store import LayerGroup
from lade.target.transfer import transfer

LIMIT = 5  # window and chunk size
LOWEST = torch.finfo(torch.float32).min
FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
CONFIGS: dict[str, PretrainedConfig] = {
    "full": LlamaConfig(num_hidden_layers=2),
    "sliding": MistralConfig(num_hidden_layers=2, sliding_window=LIMIT),
    "sliding and full": Gemma3TextConfig(num_hidden_layers=2, layer_types=[SLIDING, FULL], sliding_window=LIMIT),
    "chunked and full": Llama4TextConfig(num_hidden_layers=2, layer_types=[CHUNKED, FULL], attention_chunk_size=LIMIT),
    "far window": MistralConfig(num_hidden_layers=2, sliding_window=1000),
}
for _config in CONFIGS.values():
    _config._attn_implementation = "eager"


@contextmanager
def slack(tokens: int):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layers_module, "SLACK", tokens)
        yield


@dataclass
class Rows:
    """A batch behind its prefill: its cache, its masks, and which of each slot's tokens are real."""

    config: PretrainedConfig
    real: list[list[bool]]  # per slot and prompt place; what comes later is always real
    packed: bool = False
    cache: TreeCache = field(init=False)
    masks: TreeMasks = field(init=False)
    nodes: int = 0

    def __post_init__(self) -> None:
        self.cache = TreeCache(DynamicCache(config=self.config), self.config)
        self.cache.pack(self.packed)
        self._forward(len(self.real), len(self.real[0]))
        slots = range(len(self.real))
        self.cache.end_prefill(slots)
        self.masks = TreeMasks(layer_kinds(self.config), self.cache, torch.float32, torch.device("cpu"))
        self.masks.open(slots, None if all(map(all, self.real)) else torch.tensor(self.real))

    def _forward(self, rows: int, tokens: int) -> None:
        states = torch.zeros(rows, 1, tokens, 1)
        for layer in range(len(self.cache.layers)):
            self.cache.update(states, states, layer)

    def sights(self, slots: Sequence[int], trees: Sequence[list[int]]) -> list[Sight]:
        """Prepare a step for these trees."""
        pieces = [piece_of(tree) for tree in trees]
        self.nodes = max(map(len, trees))
        if not self.packed:
            pieces = [piece.padded(self.nodes, self.nodes) for piece in pieces]
        self.cache.prepare(slots, [piece.columns for piece in pieces], [0] * len(slots))
        sent = transfer(self.cache, slots, [0] * len(slots), pieces, (), (), torch.device("cpu"))
        return sent.sights

    def step(self, slots: Sequence[int], trees: Sequence[list[int]]) -> dict[str, Tensor]:
        """Prepare a padded step for these trees; returns the masks by kind of layer."""
        masks = self.masks.padded(self.sights(slots, trees))
        self._forward(len(trees), self.nodes)
        return masks if isinstance(masks, dict) else {self.masks.kinds.name: masks}

    def group(self, name: str) -> LayerGroup:
        return self.cache.group(sliding=name != FULL)

    def naive(self, name: str, slots: Sequence[int], trees: Sequence[list[int]]) -> Tensor:
        """[n, T, K] bool: what each node of each row may look at, key by key."""
        kv_length = max(self.group(name).held(slot) for slot in slots) + self.nodes
        seen = torch.zeros(len(trees), self.nodes, kv_length, dtype=torch.bool)
        for row, (slot, tree) in enumerate(zip(slots, trees, strict=True)):
            for node in range(self.nodes):
                for key in range(kv_length):
                    seen[row, node, key] = self._sees(name, slot, tree, node, key)
        return seen

    def _sees(self, name: str, slot: int, tree: list[int], node: int, key: int) -> bool:
        kinds = self.masks.kinds
        group, kind = self.group(name), kinds[name] if isinstance(kinds, dict) else kinds
        other = key - group.held(slot)
        if other >= 0:
            if other not in ancestors(tree, node):
                return False
            position = group.lengths[slot] + depth_of(tree, other)
        else:
            position = group.starts[slot] + key
            if position < len(self.real[slot]) and not self.real[slot][position]:
                return False
        own, first = group.lengths[slot] + depth_of(tree, node), self.real[slot].index(True)
        in_window = kind.window is None or own - kind.window < position
        return in_window and (kind.chunk is None or (own - first) // kind.chunk == (position - first) // kind.chunk)


def piece_of(tree: list[int]) -> Piece:
    return Piece([5] * len(tree), tree, depths_of(tree), 0, (), 5)


def ancestors(tree: list[int], node: int) -> list[int]:
    """A node and what is above it; padding nodes stand alone."""
    return [node] if not 0 < node < len(tree) else [node, *ancestors(tree, tree[node])]


def depth_of(tree: list[int], node: int) -> int:
    return len(ancestors(tree, node)) - 1


def depths_of(tree: list[int]) -> list[int]:
    return [depth_of(tree, node) for node in range(len(tree))]


def random_tree(data: st.DataObject, sizes: st.SearchStrategy[int]) -> list[int]:
    return [-1, *(data.draw(st.integers(0, node - 1)) for node in range(1, data.draw(sizes)))]


def root_path(tree: list[int], node: int) -> list[int]:
    return sorted(ancestors(tree, node % len(tree)))


@st.composite
def paddings(draw: st.DrawFn) -> list[list[bool]]:
    """Prompts of 1 to 3 rows, left-padded; some with a hole, as nothing forbids."""
    rows, width = draw(st.integers(1, 3)), draw(st.integers(1, 12))
    real = [[False] * pad + [True] * (width - pad) for pad in (draw(st.integers(0, width - 1)) for _ in range(rows))]
    for row in real:
        hole = draw(st.none() | st.integers(row.index(True), width - 1))
        if hole not in (None, row.index(True), width - 1):
            row[hole] = False
    return real


@pytest.mark.compat
@settings(max_examples=35)
@pytest.mark.parametrize("name", CONFIGS)
@given(real=paddings(), spare=st.integers(0, 6), data=st.data())
def test_masks_agree(name: str, real: list[list[bool]], spare: int, data: st.DataObject) -> None:
    """Over steps of any trees in any slots: the padded masks, and those of packed rows, are the formula's."""
    with slack(spare):
        padded, packed = Rows(CONFIGS[name], real), Rows(CONFIGS[name], real, packed=True)
        for _ in range(data.draw(st.integers(1, 5))):
            slots = data.draw(st.lists(st.integers(0, len(real) - 1), min_size=1, unique=True))
            trees = [random_tree(data, st.integers(1, 6)) for _ in slots]
            masks = padded.step(slots, trees)
            sights = packed.sights(slots, trees)
            for kind, mask in masks.items():
                seen = padded.naive(kind, slots, trees)
                if mask is None:
                    assert seen.shape[:2] == (1, 1)
                    assert seen.all()
                else:
                    assert mask.shape == (len(slots), 1, padded.nodes, seen.shape[2])
                    assert torch.equal(mask[:, 0] == 0, seen)
                    assert ((mask == 0) | (mask == LOWEST)).all()
                assert_rows_agree(packed, kind, sights, seen)
            paths = [root_path(tree, data.draw(st.integers(0, 5))) for tree in trees]
            padded.cache.keep(slots, paths)
            packed.cache.keep(slots, paths)


def assert_rows_agree(packed: Rows, name: str, sights: Sequence[Sight], seen: Tensor) -> None:
    """The masks of packed rows begin at the first key that any node of theirs sees, and hide nothing before it."""
    kind = next(kind for kind in packed.masks.each_kind if kind.name == name)
    for sight, row in zip(sights, seen, strict=True):
        nodes, lowest = sight.visible.shape[0], packed.masks.lowest_key(kind, sight.slot)
        end = packed.group(name).held(sight.slot) + nodes
        mask = packed.masks.row(kind, sight, lowest)
        assert not row[:nodes, :lowest].any()
        expected = row[:nodes, lowest:end]
        like, whole = torch.empty(0), mask.whole()
        assert torch.equal(torch.ones_like(expected) if whole is None else whole == 0, expected)
        assert expected[:, mask.seen : mask.prefix].all()
        expected = torch.cat([expected[:, : mask.seen], expected[:, mask.prefix :]], 1)
        rest = mask.folded(1, like, rest=True)
        assert torch.equal(torch.ones_like(expected) if rest is None else rest[0, 0] == 0, expected)


# A chain, as transformers masks it


def by_position(mask: Tensor, first: int, positions: int) -> Tensor:
    """[n, T, positions]: what is seen, by position in the row; what is not stored is not seen."""
    seen = torch.zeros(*mask.shape[:1], mask.shape[2], positions, dtype=torch.bool)
    seen[:, :, first : first + mask.shape[3]] = mask[:, 0] == 0
    return seen


@pytest.mark.parametrize("spare", [0, 3, 64])
@pytest.mark.parametrize("pads", [(0,), (2, 0, 5)], ids=str)
@pytest.mark.parametrize("name", CONFIGS)
def test_chains_are_masked_as_transformers_does(name: str, pads: tuple[int, ...], spare: int) -> None:
    config, prompt, nodes, steps = CONFIGS[name], 7, 4, 6
    real = [[False] * pad + [True] * (prompt - pad) for pad in pads]
    chain = list(range(-1, nodes - 1))
    with slack(spare):
        rows = Rows(config, real)
        stock = DynamicCache(config=config)
        _advance(stock, len(pads), prompt)
        for step in range(steps):
            seen = prompt + step * nodes
            mask2d = torch.tensor([row + [True] * (seen + nodes - prompt) for row in real]).long()
            theirs = create_masks_for_generate(
                config=config,
                inputs_embeds=torch.empty(len(pads), nodes, 0),
                attention_mask=mask2d if any(pads) else None,
                past_key_values=stock,
                position_ids=torch.arange(seen, seen + nodes)[None],
            )
            offsets = {layer.is_sliding: layer.get_mask_sizes(nodes)[1] for layer in stock.layers}
            ours = rows.step(range(len(pads)), [chain] * len(pads))
            theirs = theirs if isinstance(theirs, dict) else dict.fromkeys(ours, theirs)
            assert ours.keys() == theirs.keys()
            for kind, mask in ours.items():
                own = by_position(mask, rows.group(kind).starts[0], seen + nodes)
                assert torch.equal(own, by_position(theirs[kind], offsets[kind != FULL], seen + nodes))
            rows.cache.keep(range(len(pads)), [range(nodes)] * len(pads))
            _advance(stock, len(pads), nodes)


def _advance(cache: DynamicCache, rows: int, tokens: int) -> None:
    for layer in range(len(cache.layers)):
        cache.update(torch.zeros(rows, 1, tokens, 1), torch.zeros(rows, 1, tokens, 1), layer)


# What is not built


def test_layers_that_see_alike_share_one_mask() -> None:
    """While the text is shorter than the window, a sliding layer's mask is the full one, not built again."""
    rows = Rows(CONFIGS["sliding and full"], [[True] * 2])
    masks = rows.step([0], [[-1, 0]])
    assert masks[SLIDING].data_ptr() == masks[FULL].data_ptr()
    rows.cache.keep([0], [[0, 1]])
    masks = rows.step([0], [[-1, 0]])
    assert masks[SLIDING].data_ptr() != masks[FULL].data_ptr()


@pytest.mark.parametrize("name", CONFIGS)
def test_a_packed_root_needs_no_mask(name: str) -> None:
    """What it does not see is sliced away: left padding, and what is outside its window or chunk."""
    rows = Rows(CONFIGS[name], [[False] * 3 + [True] * 9, [True] * 12], packed=True)
    for sight in rows.sights([1, 0], [[-1], [-1]]):
        for kind in rows.masks.each_kind:
            assert rows.masks.row(kind, sight, rows.masks.lowest_key(kind, sight.slot)).whole() is None


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_the_lowest_value_survives_the_softmax(dtype: torch.dtype) -> None:
    """Eager attention takes its softmax in float32, where a wholly masked row of -inf would become NaN."""
    rows = Rows(CONFIGS["full"], [[False, True]])
    rows.masks = TreeMasks(layer_kinds(rows.config), rows.cache, dtype, torch.device("cpu"))
    rows.masks.open([0], torch.tensor([[False, True]]))
    masks = rows.step([0], [[-1]])
    assert masks[FULL].dtype == dtype
    assert masks[FULL].flatten().tolist() == [max(torch.finfo(dtype).min, LOWEST), 0, 0]


# Kinds


def test_kinds_of_a_model() -> None:
    assert layer_kinds(CONFIGS["sliding"]) == MaskKind(SLIDING, window=LIMIT)
    assert layer_kinds(LlamaConfig()) == MaskKind(FULL)
    assert layer_kinds(CONFIGS["sliding and full"]) == {SLIDING: MaskKind(SLIDING, window=LIMIT), FULL: MaskKind(FULL)}
    assert layer_kinds(CONFIGS["chunked and full"]) == {CHUNKED: MaskKind(CHUNKED, chunk=LIMIT), FULL: MaskKind(FULL)}


def test_unknown_kinds_are_refused() -> None:
    config = PretrainedConfig(layer_types=[FULL, "linear_attention", "conv"])
    with pytest.raises(ValueError, match="conv, linear_attention"):
        layer_kinds(config)
