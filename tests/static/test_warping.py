"""Temperature, top-k and top-p of each slot: exactly what the warpers of transformers do row by row."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from lade.core.noise import Noise
from lade.core.request import Choosing
from lade.static.rounds.choosing import Way, shared
from lade.static.rounds.warping import SlotWarping, Used, Warping, split, used

VOCABULARY, CPU = 9, torch.device("cpu")
TEMPERATURE, TOP_K, TOP_P = TemperatureLogitsWarper(0.7), TopKLogitsWarper(3), TopPLogitsWarper(0.8)
MIN_P = MinPLogitsWarper(0.1)

asked = st.builds(
    Warping,
    st.none() | st.floats(0.01, 5),
    st.none() | st.integers(1, VOCABULARY + 2),
    st.none() | st.floats(0, 1),
)


def warpers(asked: Warping) -> list[Any]:
    """Those of transformers."""
    classes = TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper
    return [each(value) for each, value in zip(classes, asked, strict=True) if value is not None]


@given(st.lists(asked, min_size=1, max_size=5), st.integers(0, 10_000))
def test_as_the_warpers_of_transformers(rows: list[Warping], seed: int) -> None:
    """Of rows that share a step; scores of equal values, infinite ones and NaN among them."""
    noise = torch.Generator().manual_seed(seed)
    slots = torch.randperm(len(rows), generator=noise)
    nodes = slots.repeat_interleave(2)
    scores = torch.randn(len(nodes), VOCABULARY, generator=noise).mul(2).round(decimals=1)
    scores[torch.rand(scores.shape, generator=noise) < 0.1] = -torch.inf
    scores[torch.rand(len(nodes), generator=noise) < 0.05] = torch.nan
    own = SlotWarping(len(rows), CPU)
    for slot in range(len(rows)):
        own.begin(slot, Warping(0.5, 2, 0.5))  # of a request that has left
        own.begin(slot, rows[slot])
    found = LogitsProcessorList(own.processors(used(rows)))(nodes[:, None], scores)
    for line, slot in enumerate(nodes.tolist()):
        alone = LogitsProcessorList(warpers(rows[slot]))(torch.zeros(1, 1), scores[line : line + 1])
        assert torch.equal(found[line].nan_to_num(7), alone[0].nan_to_num(7))


def test_a_step_does_what_its_requests_ask_for() -> None:
    assert used([Warping(), Warping()]) == Used(False, 0, False)
    assert used([Warping(), Warping(0.5), Warping(top_k=5), Warping(top_k=3)]) == Used(True, 8, False)
    assert used([Warping(top_p=0.5)]) == Used(False, 0, True)
    assert [type(each).__name__ for each in SlotWarping(1, CPU).processors(Used(True, 8, True))] == [
        "SlotTemperature",
        "SlotTopK",
        "SlotTopP",
    ]


@pytest.mark.parametrize(
    ("processors", "before", "warping", "behind"),
    [
        ([], 0, Warping(), 0),
        ([TEMPERATURE, TOP_K, TOP_P], 0, Warping(0.7, 3, 0.8), 0),
        ([SuppressTokensLogitsProcessor([3]), TOP_P, MIN_P], 1, Warping(top_p=0.8), 1),
        ([MIN_P], 1, Warping(), 0),
        ([TOP_P, TOP_K], 2, Warping(), 0),
        ([TEMPERATURE, TEMPERATURE], 2, Warping(), 0),
        ([TEMPERATURE, MIN_P, TOP_K], 3, Warping(), 0),
        ([TopKLogitsWarper(3, filter_value=-9.0)], 1, Warping(), 0),
        ([TopPLogitsWarper(0.5, min_tokens_to_keep=2)], 1, Warping(), 0),
    ],
)
def test_other_orders_and_arguments_are_other_processors(
    processors: list[Any], before: int, warping: Warping, behind: int
) -> None:
    found = split(processors)
    assert (len(found.before), found.warping, len(found.behind)) == (before, warping, behind)
    kept = [] if warping == Warping() else [TEMPERATURE, TOP_K, TOP_P]
    assert [*found.before, *found.behind] == [each for each in processors if each not in kept]


def way(*processors: Any, sampled: bool = True) -> Way:
    return Way.of(Choosing([], processors, Noise(1, CPU) if sampled else None))


def test_requests_that_share_a_chooser() -> None:
    """Whatever they ask of the three, and whether they are sampled; others must be equal."""
    sampled, other = way(TEMPERATURE, TOP_K, MIN_P), way(TopPLogitsWarper(0.5), MinPLogitsWarper(0.1))
    together = shared([sampled, other])
    assert together is not None
    assert together.used == Used(True, 4, True)
    assert together == shared([other, sampled])
    assert shared([sampled, way(TEMPERATURE, TOP_K, MinPLogitsWarper(0.2))]) is None
    assert shared([sampled, way(TEMPERATURE, TOP_K)]) is None
    suppressing = [way(SuppressTokensLogitsProcessor(tokens), TOP_K) for tokens in ([3], [3], [4])]
    assert shared(suppressing[:2]) is not None
    assert shared(suppressing) is None
    mixed, alone = shared([way(sampled=False), way(TOP_K)]), shared([way(sampled=False)])
    assert mixed is not None
    assert alone is not None
    assert (mixed.sampled, alone.sampled) == (True, False)
