"""Where a step's keys and values are written, and what its rows read of them: the naive loop over nodes."""

import pytest
import torch
from transformers import DynamicCache

from lade.static.slots import StaticSlots

HEADS, CAPACITY, LAYERS, NODES = 2, 256, 2, 5


def slots_of(count: int, sizes: tuple[int, int]) -> StaticSlots:
    """Slots of layers whose keys and values have these sizes; full of noise."""
    cache = DynamicCache()
    for layer in range(LAYERS):
        cache.update(*(torch.zeros(1, HEADS, 1, size) for size in sizes), layer)
    slots = StaticSlots(cache.layers, count, CAPACITY, torch.device("cpu"))
    for stack in slots.stacks:
        stack.normal_()
    return slots


@pytest.mark.parametrize("whole", [False, True], ids=("slots", "whole"))
@pytest.mark.parametrize("sizes", [(4, 4), (4, 6)], ids=("alike", "unlike"))
@pytest.mark.parametrize("rows", [[0], [2, 0]], ids=("alone", "several"))
def test_keys_and_values_of_a_step(rows: list[int], sizes: tuple[int, int], whole: bool) -> None:
    slots = slots_of(1 if rows == [0] else 3, sizes)
    slots.reach.whole = whole
    slots.lengths[:] = torch.arange(7, 7 + len(slots.lengths))
    of_nodes = torch.tensor([rows[node % len(rows)] for node in range(NODES)])
    indices = torch.arange(NODES) // len(rows)
    slots.aim(torch.tensor(rows), of_nodes, indices)
    for index, layer in enumerate(slots.cache.layers):
        before = [buffer.clone() for buffer in (layer.keys, layer.values)]
        others = [stack.clone() for stack in slots.stacks]
        states = [torch.randn(1, HEADS, NODES, size) for size in sizes]
        found = layer.update(*states)
        for expected, state, buffer, seen in zip(before, states, (layer.keys, layer.values), found, strict=True):
            for node in range(NODES):
                slot = int(of_nodes[node])
                expected[:, :, slot * CAPACITY + 7 + slot + int(indices[node])] = state[:, :, node]
            assert torch.equal(buffer, expected)
            parts = [expected[0, :, slot * CAPACITY : (slot + 1) * CAPACITY] for slot in rows]
            assert torch.equal(seen, expected if whole else torch.stack(parts))
            assert seen.data_ptr() == buffer.data_ptr() or not (whole or len(rows) == 1), "without a copy"
        changed = sum((one != other).flatten(1).any(1).sum() for one, other in zip(slots.stacks, others, strict=True))
        assert changed == 2, f"layer {index} writes to its own memory alone"
