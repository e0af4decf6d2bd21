"""Tree masks three ways: kept from step to step, from the definition, and by a formula per element in plain Python;
where the tree is a chain, transformers' own masks are a fourth.
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

from lade.core.tree import ancestor_matrix
from lade.target import layers as layers_module
from lade.target.cache import TreeCache
from lade.target.layers import LayerGroup
from lade.target.masks import Block, DenseMasks, MaskKind, layer_kinds, limited_mask

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
    """A batch behind its prefill: its cache, its masks, and which of each row's tokens are real."""

    config: PretrainedConfig
    real: list[list[bool]]  # per row and prompt place; what comes later is always real
    cache: TreeCache = field(init=False)
    masks: DenseMasks = field(init=False)
    nodes: int = 0

    def __post_init__(self) -> None:
        self.cache = TreeCache(DynamicCache(config=self.config), self.config)
        self._forward(len(self.real), len(self.real[0]))
        self.cache.grow_trees(len(self.real))
        padding = None if all(map(all, self.real)) else torch.tensor(self.real)
        kinds = layer_kinds(self.config)
        self.masks = DenseMasks(kinds, self.cache, padding, torch.float32, torch.device("cpu"))

    def _forward(self, rows: int, tokens: int) -> None:
        states = torch.zeros(rows, 1, tokens, 1)
        for layer in range(len(self.cache.layers)):
            self.cache.update(states, states, layer)

    def step(self, trees: Sequence[list[int]]) -> tuple[Block, dict[str, Tensor]]:
        """Prepare a step for these trees; returns it with the masks by kind of layer."""
        self.nodes = max(map(len, trees))
        depths = [depths_of(tree) + [0] * (self.nodes - len(tree)) for tree in trees]
        visible = torch.stack([ancestor_matrix(tree, self.nodes) for tree in trees])
        block = Block(visible, depths, max(map(max, depths)))
        self.cache.prepare(len(trees), self.nodes)
        masks = self.masks.build(block)
        self._forward(len(trees), self.nodes)
        return block, masks if isinstance(masks, dict) else {self.masks.kinds.name: masks}

    def swap(self, one: int, other: int) -> None:
        self.cache.swap(one, other)
        self.masks.swap(one, other)
        self.real[one], self.real[other] = self.real[other], self.real[one]

    def kind(self, name: str) -> MaskKind:
        kinds = self.masks.kinds
        return kinds[name] if isinstance(kinds, dict) else kinds

    def group(self, name: str) -> LayerGroup:
        return self.cache.group(sliding=name != FULL)

    def naive(self, name: str, trees: Sequence[list[int]]) -> Tensor:
        """[n, T, K] bool: what each node of each row may look at, key by key."""
        kv_length = self.group(name).kv_length
        seen = torch.zeros(len(trees), self.nodes, kv_length, dtype=torch.bool)
        for row, tree in enumerate(trees):
            for node in range(self.nodes):
                for key in range(kv_length):
                    seen[row, node, key] = self._sees(name, row, tree, node, key)
        return seen

    def _sees(self, name: str, row: int, tree: list[int], node: int, key: int) -> bool:
        group, kind = self.group(name), self.kind(name)
        other = key - group.held(row)
        if other >= 0:
            if other not in ancestors(tree, node):
                return False
            position = group.lengths[row] + depth_of(tree, other)
        else:
            position = group.starts[row] + key
            if position < len(self.real[row]) and not self.real[row][position]:
                return False
        own, first = group.lengths[row] + depth_of(tree, node), self.real[row].index(True)
        in_window = kind.window is None or own - kind.window < position
        return in_window and (kind.chunk is None or (own - first) // kind.chunk == (position - first) // kind.chunk)


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
@settings(max_examples=60)
@pytest.mark.parametrize("name", CONFIGS)
@given(real=paddings(), spare=st.integers(0, 6), data=st.data())
def test_masks_agree(name: str, real: list[list[bool]], spare: int, data: st.DataObject) -> None:
    """Over steps of any trees, with rows that swap places and leave."""
    with slack(spare):
        rows, active = Rows(CONFIGS[name], real), len(real)
        for _ in range(data.draw(st.integers(1, 5))):
            trees = [random_tree(data, st.integers(1, 6)) for _ in range(active)]
            block, masks = rows.step(trees)
            for kind, mask in masks.items():
                defined = limited_mask(rows.masks, rows.kind(kind), rows.group(kind), block)
                if mask is None:
                    assert defined.shape[:3] == (1, 1, 1)
                    assert not defined.any()
                    continue
                assert mask.shape == (active, 1, rows.nodes, rows.group(kind).kv_length)
                assert torch.equal(mask, defined)
                assert torch.equal(mask[:, 0] == 0, rows.naive(kind, trees))
                assert ((mask == 0) | (mask == LOWEST)).all()
            rows.cache.keep([root_path(tree, data.draw(st.integers(0, 5))) for tree in trees])
            rows.swap(*(data.draw(st.integers(0, active - 1)) for _ in range(2)))
            active = data.draw(st.integers(1, active))


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
            _, ours = rows.step([chain] * len(pads))
            theirs = theirs if isinstance(theirs, dict) else dict.fromkeys(ours, theirs)
            assert ours.keys() == theirs.keys()
            for kind, mask in ours.items():
                own = by_position(mask, rows.group(kind).starts[0], seen + nodes)
                assert torch.equal(own, by_position(theirs[kind], offsets[kind != FULL], seen + nodes))
            rows.cache.keep([range(nodes)] * len(pads))
            _advance(stock, len(pads), nodes)


def _advance(cache: DynamicCache, rows: int, tokens: int) -> None:
    for layer in range(len(cache.layers)):
        cache.update(torch.zeros(rows, 1, tokens, 1), torch.zeros(rows, 1, tokens, 1), layer)


# What is kept from step to step


def test_full_masks_are_kept_from_step_to_step() -> None:
    """One buffer while the capacity lasts, whatever the step; a new one only where the capacity doubles."""
    rows = Rows(CONFIGS["full"], [[True] * 9] * 2)
    buffers = set()
    for step in range(120):
        _, masks = rows.step([[-1, 0, 1, 0], [-1, 0]])
        buffers.add(masks[FULL].untyped_storage().data_ptr())
        rows.cache.keep([[0, 3], [0]] if step % 2 else [[0], [0, 1]])
    assert len(buffers) <= 5  # 16, 32, ... 256 columns


def test_layers_that_see_alike_share_one_mask() -> None:
    """While the text is shorter than the window, a sliding layer's mask is the full one, not built again."""
    rows = Rows(CONFIGS["sliding and full"], [[True] * 2])
    _, masks = rows.step([[-1, 0]])
    assert masks[SLIDING].data_ptr() == masks[FULL].data_ptr()
    rows.cache.keep([[0, 1]])
    _, masks = rows.step([[-1, 0]])
    assert masks[SLIDING].data_ptr() != masks[FULL].data_ptr()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_the_lowest_value_survives_the_softmax(dtype: torch.dtype) -> None:
    """Eager attention takes its softmax in float32, where a wholly masked row of -inf would become NaN."""
    rows, padding = Rows(CONFIGS["full"], [[False, True]]), torch.tensor([[False, True]])
    rows.masks = DenseMasks(layer_kinds(rows.config), rows.cache, padding, dtype, torch.device("cpu"))
    _, masks = rows.step([[-1]])
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
