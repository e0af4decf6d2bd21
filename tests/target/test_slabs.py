"""Slabs of slots that open, grow and close: none overlaps another, whatever the order and the sizes."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import DynamicCache, LlamaConfig

from lade.target import layers as layers_module
from lade.target import store as store_module
from lade.target.cache import TreeCache
from lade.target.store import LayerGroup

STEP = st.tuples(st.sampled_from(["open", "close", "grow"]), st.integers(0, 9), st.integers(1, 3))
STEPS = st.lists(STEP, min_size=25, max_size=25)


@pytest.fixture(scope="module", autouse=True)
def no_spare_room() -> Iterator[None]:
    """Sizes fill their gaps exactly, or lack one token, as often as not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layers_module, "SLACK", 0)
        patch.setattr(store_module, "SPARE", 0)
        yield


def assert_apart(group: LayerGroup) -> None:
    end = 0
    for slot in group.slabs.in_order():
        assert group.slabs.offsets[slot] >= end, "two slots share memory"
        end = group.slabs.offsets[slot] + group.slabs.capacities[slot]
    assert end <= group.slabs.total


@given(STEPS)
def test_slots_never_share_memory(steps: list[tuple[str, int, int]]) -> None:
    config = LlamaConfig(num_hidden_layers=1)
    cache = TreeCache(DynamicCache(config=config), config)
    cache.pack(True)
    (group,) = cache.groups.values()
    slots: list[int] = []
    for new, (what, which, size) in enumerate(steps):
        if what == "open":
            group.open([new], size)
            slots.append(new)
        elif slots and what == "close":
            group.close(slots.pop(which % len(slots)))
        elif slots:
            slot = slots[which % len(slots)]
            group.prepare([slot], [size], [0])
            group.keep([slot], [range(size)])
        assert_apart(group)
        assert all(group.held(slot) <= group.slabs.capacities[slot] for slot in slots)
