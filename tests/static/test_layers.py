"""Where a step's keys and values are written, and what its rows read of them: the naive loop over nodes."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
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


@pytest.fixture(params=["slots", "whole", "kernel"])
def reached(request: pytest.FixtureRequest) -> str:
    """What layers hand out: the slots of the step's rows, or all of their buffers, to which a kernel may write."""
    if request.param == "kernel":
        request.getfixturevalue("interpreter")
    return str(request.param)


@pytest.mark.parametrize("sizes", [(4, 4), (4, 6)], ids=("alike", "unlike"))
@pytest.mark.parametrize("rows", [[0], [2, 0]], ids=("alone", "several"))
def test_keys_and_values_of_a_step(rows: list[int], sizes: tuple[int, int], reached: str) -> None:
    slots, whole = slots_of(1 if rows == [0] else 3, sizes), reached != "slots"
    slots.reach.whole, slots.reach.kernels = whole, reached == "kernel"
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


class Operations(TorchDispatchMode):
    """The names of those that are no views."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not function.is_view:
            self.names.append(str(function).split(".")[1])
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("count", "expected"), [(1, ["cat", "index_copy_"]), (3, ["cat", "index_copy_", "index_select"])]
)
def test_kernels_of_a_layer(count: int, expected: list[str]) -> None:
    """Keys and values together, and nothing that all layers have in common."""
    slots, states = slots_of(count, (4, 4)), torch.randn(1, HEADS, 2, 4)
    slots.aim(torch.tensor([0]), torch.tensor([0, 0]), torch.arange(2))
    with Operations() as operations:
        slots.cache.layers[0].update(states, states)
    assert operations.names == expected
