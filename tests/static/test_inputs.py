"""What a static step is given, and the paths that it finds: those of the walk on the host."""

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lade.core.tree import Draft, TreeBuilder, ancestor_matrix, chain
from lade.core.verify import walk
from lade.kernels.rows import CHAIN
from lade.static.buckets import NODES, capacity_bucket, nodes_bucket, rows_bucket
from lade.static.graphs import Sized
from lade.static.inputs import CERTAIN, NEVER, Size, StepInputs, StepRow, size_of
from lade.static.outputs import StaticOutputs
from lade.static.packing import Packing
from lade.static.readback import Readback
from lade.static.sight import visible
from lade.static.walking import WalkingStep, taken

CAPACITY = 96
TOKENS = 4  # so few that choices often lie in a tree


def drafts_of(noise: random.Random, rows: int) -> list[Draft]:
    """Trees of all shapes, of which some nodes are not asked for; and chains of known tokens."""
    found = []
    for _ in range(rows):
        if noise.random() < 0.2:
            found.append(chain([noise.randrange(TOKENS) for _ in range(noise.randint(1, 70))], noise.random() < 0.5))
            continue
        tree = TreeBuilder(noise.randrange(TOKENS))
        for _ in range(noise.randint(0, 70)):
            tree.add(noise.randrange(len(tree.tokens)), noise.randrange(TOKENS + 2), "random")
        tree.queries |= {node for node in range(len(tree.tokens)) if noise.random() < 0.8}
        found.append(tree.build().within(TOKENS + 1))
    return found


def inputs_for(slots: list[int], drafts: list[Draft], spare: int) -> StepInputs:
    rows = [StepRow(slot, draft) for slot, draft in zip(slots, drafts, strict=True)]
    size = size_of(rows)
    return StepInputs(Packing(size, spare, CAPACITY).fill(rows), size)


@settings(max_examples=40)
@given(st.integers(0, 1 << 30))
def test_paths_and_sight_are_those_of_the_host(seed: int) -> None:
    noise = random.Random(seed)
    drafts, slots = drafts_of(noise, noise.randint(1, 3)), [2, 0, 3]
    inputs = inputs_for(slots[: len(drafts)], drafts, spare=4)
    choices = torch.tensor([noise.randrange(TOKENS) for _ in inputs.ids])
    state: Any = SimpleNamespace(
        spare=4, capacity=CAPACITY, lengths=torch.tensor([noise.randint(0, 20) for _ in range(4)] + [0])
    )
    right = WalkingStep.walk(SimpleNamespace(slots=state), inputs, choices)  # type: ignore[arg-type]
    seen, _ = visible(inputs, state)
    output = torch.stack([choices, 2 * right, choices + 1, choices + 2], dim=1).int()
    first = 0
    for slot, draft, found in zip(slots, drafts, taken(output, drafts), strict=False):
        end, length = first + len(draft), int(state.lengths[slot])
        expected = (
            walk(draft, lambda node, first=first: int(choices[first + node]), lambda token: False)
            if (draft.queries)
            else SimpleNamespace(path=list(range(len(draft))), tokens=[])
        )
        assert (found.path, found.tokens) == (list(expected.path), expected.tokens)
        assert found.likeliest.tolist() == output[first:end, 2:3].tolist()
        assert found.probabilities.view(np.int32).tolist() == output[first:end, 3:].tolist()
        assert seen[first:end, :length].all()
        tree = ancestor_matrix(draft.parents)[:, : CAPACITY - length]
        assert torch.equal(seen[first:end, length : length + len(draft)], tree)
        assert not seen[first:end, length + len(draft) :].any()
        orders = [inputs.orders[first + node].item() for node in found.path]
        assert orders[len(orders) - len(found.tokens) :] == list(range(len(found.tokens)))
        first = end
    assert not right[first:].any()
    assert not seen[first:].any()


def test_sizes() -> None:
    assert [nodes_bucket(nodes) for nodes in (1, 3, 9, 17, 64, 65, 256)] == [1, 4, 16, 24, 64, 96, 256]
    assert [rows_bucket(rows) for rows in (1, 2, 3, 8, 9)] == [1, 2, 4, 8, 16]
    assert [capacity_bucket(tokens) for tokens in (1, 256, 257, 5000)] == [256, 256, 512, 8192]
    assert list(NODES) == sorted(set(NODES))
    with pytest.raises(ValueError, match="nodes must be at most 256, got 257"):
        nodes_bucket(257)


@settings(max_examples=20)
@given(st.integers(0, 1 << 30))
def test_a_step_leaves_nothing_for_the_next_one_of_its_size(seed: int) -> None:
    """All are packed at one place, which the device may read of at any time until it is packed again."""
    noise, size = random.Random(seed), Size(256, 4, 2)
    packing = Packing(size, 4, CAPACITY)
    numbers = packing.fill([])
    for _ in range(4):
        drafts = drafts_of(noise, noise.randint(0, 3))
        rows = [
            StepRow(slot, draft, noise.randrange(9), [(7, 6)] * noise.randrange(3)) for slot, draft in enumerate(drafts)
        ]
        assert torch.equal(packing.fill(rows), Packing(size, 4, CAPACITY).fill(rows))
        assert numbers.data_ptr() == packing.fill(rows).data_ptr()
    inputs = StepInputs(packing.fill([]), size)
    assert set(inputs.slots.tolist()) == set(inputs.rows.tolist()) == {4}
    assert set(inputs.sources.tolist()) == set(inputs.goals.tolist()) == {4 * CAPACITY}
    assert inputs.indices.tolist() == inputs.parents.tolist() == list(range(256))
    assert inputs.trees.tolist() == [CHAIN] * 4
    assert not inputs.words.any()


def test_claims_of_nodes() -> None:
    """A node is accepted where it is chosen, unless its logits are not asked for, or no model knows its token."""
    tree = TreeBuilder(3)
    for parent, token in ((0, 5), (0, 6), (1, 9), (2, 7)):
        tree.add_path(parent, [token], "tree")
    whole = tree.build()
    tree.queries.remove(1)
    drafts = {
        (CERTAIN, 5, 6, 9, 7): whole,
        (CERTAIN, 5, 6, NEVER, 7): whole.within(8),
        (CERTAIN, NEVER, 6, 9, 7): tree.build(),
        (CERTAIN,) * 3: chain([1, 2, 3], asked=True),
        (CERTAIN,) * 2: chain([1, 2], asked=False),
    }
    for claims, draft in drafts.items():
        assert inputs_for([0], [draft], spare=1).claims.tolist()[: len(draft)] == list(claims)


class Event:
    """A CUDA event of a copy that is still under way."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        self.numbers = torch.zeros(0)

    def query(self) -> bool:
        return False

    def synchronize(self) -> None:
        self.calls.append(("waits", int(self.numbers[0])))

    def record(self, stream: object) -> None:
        self.calls.append(("records", int(self.numbers[0])))


def test_the_host_waits_for_the_copy_of_what_it_overwrites(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    size, event = Size(1, 1, 1), Event()
    packing = Packing(size, 1, CAPACITY)
    event.numbers = packing.fill([])
    sent: Any = event
    sized = Sized(packing, StepInputs(torch.zeros(size.numbers, dtype=torch.long), size), lambda: None, sent)  # type: ignore[arg-type, return-value]
    for token in (5, 6):
        sized.send([StepRow(0, Draft.alone(token))])
        assert sized.inputs.ids.tolist() == [token]
    assert event.calls == [("waits", 0), ("records", 5), ("waits", 5), ("records", 6)]


def test_the_host_waits_for_the_copy_of_what_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    event = Event()
    back, event.numbers = Readback(event), torch.zeros(1)
    back(torch.ones(3, 4).int())
    event.calls, event.numbers = [], back._memory
    for value, shape in ((5, (3, 4)), (6, (7,)), (8, (3, 8))):
        found = back(torch.full(shape, value).int())
        assert found.tolist() == [value] * torch.Size(shape).numel()
        assert found.__array_interface__["data"][0] == event.numbers.data_ptr(), "memory is pinned once"
    assert event.calls == [(what, value) for value in (5, 6, 8) for what in ("records", "waits")]
    assert back(torch.ones(5, 5).int()).tolist() == [1] * 25, "it grows"


def test_what_was_read_of_a_step_outlives_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    event, slots = Event(), SimpleNamespace(heat=lambda *args: True)
    event.numbers = torch.zeros(1)
    back, found = Readback(event), torch.arange(12).reshape(2, 6).int()
    given: Any = {"found": found, "slots": slots, "step_slots": [0], "back": back}
    outputs = StaticOutputs(torch.zeros(2, 9), [{0: 0, 1: 1}], **given)
    tokens, probabilities = outputs.likeliest()
    back(-found)
    assert tokens.tolist() == [[2, 3], [8, 9]]
    assert probabilities.view(np.int32).tolist() == [[4, 5], [10, 11]]


def test_outputs_are_copied_at_once_where_nothing_waits() -> None:
    assert Readback()(torch.ones(3, 4).int()).tolist() == [1] * 12


def test_what_is_kept_is_moved_first() -> None:
    rows = [StepRow(2, Draft.alone(3), 9, [(7, 6), (8, 7)]), StepRow(0, Draft.alone(5), 4, [(3, 2)])]
    size = size_of(rows)
    assert size == (4, 2, 1), "moves need room as nodes do"
    inputs = StepInputs(Packing(size, 4, CAPACITY).fill(rows), size)
    assert inputs.lengths.tolist() == [9, 4]
    spare = 4 * CAPACITY
    assert inputs.sources.tolist() == [2 * CAPACITY + 7, 2 * CAPACITY + 8, 3, spare]
    assert inputs.goals.tolist() == [2 * CAPACITY + 6, 2 * CAPACITY + 7, 2, spare]
