"""Trees that grow forward by forward: the logits are those of the whole tree in one forward."""

import pytest
import torch
from families import BY_NAME
from tiny import tiny_model

from lade.core.stats import Clock
from lade.core.tree import TreeBuilder
from lade.facts.positions import position_limit
from lade.target.growth import grow, prefill_texts
from lade.target.masks import layer_kinds
from lade.target.model import HFTarget
from lade.target.probe import empty_cache

TEXTS = ([5, 6, 7, 8, 9, 10, 11, 12, 13, 14], [20, 21, 22], [33, 34, 35, 36, 37])
NAMES = ("llama", "mistral-sliding", "gemma3", "gpt2", "llama4")
ROUNDS = 8  # several windows of the sliding layers


def target_of(name: str, packed: bool) -> HFTarget:
    model = tiny_model(BY_NAME[name], BY_NAME[name].attention[-1])
    config = model.config.get_text_config(decoder=True)
    kinds, limit = layer_kinds(config), position_limit(config)
    target = HFTarget(model, empty_cache(model), kinds, limit, Clock(), packed=packed)
    prefill_texts(target, TEXTS)
    return target


def tree(root: int, wide: bool) -> TreeBuilder:
    builder = TreeBuilder(root)
    for path in ([3], [6], [3, 4], [3, 5], [6, 7], [6, 8]) if wide else ([3],):
        builder.add_path(0, path, "test")
    return builder


def by_level(builder: TreeBuilder, level: int) -> tuple[int, int]:
    """The nodes that a forward computes: the root, its children, theirs in two portions."""
    cuts = [0, 1, 3, 5, len(builder.tokens)]
    return min(cuts[level], len(builder.tokens)), min(cuts[level + 1], len(builder.tokens))


@pytest.mark.compat
@torch.no_grad()
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
@pytest.mark.parametrize("name", NAMES)
def test_grown_is_whole(name: str, packed: bool) -> None:
    """Rows of different lengths and trees; what is accepted is kept from the grown one, round after round."""
    grown, whole = target_of(name, packed), target_of(name, packed)
    for round in range(ROUNDS):
        builders = [tree(40 + round, wide) for wide in (True, False, True)]
        outputs = whole.forward(range(3), [builder.build() for builder in _asking(builders)])
        for level in range(4):
            spans = [by_level(builder, level) for builder in builders]
            queries = [range(*span) for span in spans]
            logits, lines = grow(grown, range(3), builders, spans, queries)
            for slot, nodes in enumerate(queries):
                for node in nodes:
                    assert torch.allclose(logits[lines[slot, node]], outputs.at(slot, node)[0], atol=1e-4)
        paths = [[0, 4, 6], [0, 1], [0]]
        grown.keep(range(3), paths)
        whole.keep(range(3), paths)


def _asking(builders: list[TreeBuilder]) -> list[TreeBuilder]:
    for builder in builders:
        builder.queries = set(range(len(builder.tokens)))
    return builders


@torch.no_grad()
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
def test_only_what_is_asked_for(packed: bool) -> None:
    target = target_of("llama", packed)
    builders = [tree(40, True) for _ in TEXTS]
    everything, lines = grow(target, range(3), builders, [(0, 7)] * 3, [range(7)] * 3)
    some, found = grow(target, range(3), builders, [(0, 7)] * 3, [(2, 5), (), (1,)])
    assert len(some) == (3 if packed else 9)
    for place in ((0, 2), (0, 5), (2, 1)):
        assert torch.allclose(some[found[place]], everything[lines[place]], atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
def test_rows_without_new_nodes(packed: bool) -> None:
    target = target_of("llama", packed)
    builders = [tree(40, True) for _ in TEXTS]
    everything, lines = grow(target, range(3), builders, [(0, 7)] * 3, [range(7)] * 3)
    grow(target, range(3), builders, [(0, 3), (0, 7), (0, 7)], [()] * 3)
    some, found = grow(target, range(3), builders, [(3, 7), (7, 7), (7, 7)], [(6,), (), ()])
    assert torch.allclose(some[found[0, 6]], everything[lines[0, 6]], atol=1e-5)
