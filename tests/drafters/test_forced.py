"""Tokens that are sure to follow: in the tree, within its room, and no other than the model's choice in the text."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from families import BY_NAME
from hypothesis import given
from hypothesis import strategies as st
from tiny import FIRST_WORD, tiny_model

import lade
from lade.core.request import Request
from lade.core.tree import Draft, TreeBuilder
from lade.core.verify import walk
from lade.drafters.forced import SOURCE, with_forced

TOKENS = st.integers(0, 2)  # few, so that paths share prefixes
PATHS = st.lists(st.tuples(st.integers(0, 10), st.lists(TOKENS, max_size=4), st.booleans()), max_size=6)


def request(forced: Any, nodes: int = 99) -> Request:
    return Request(0, [7], 1, 9, forced=forced, max_nodes=nodes)


@given(PATHS, st.lists(TOKENS, max_size=6), st.integers(1, 30), st.integers(0, 6))
def test_the_path_is_in_the_tree_as_far_as_it_fits(
    paths: list[tuple[int, list[int], bool]], path: list[int], nodes: int, depth: int
) -> None:
    builder = TreeBuilder(7)
    for start, tokens, query in paths:
        builder.add_path(start % len(builder.tokens), tokens, "other", query)
    tree = builder.build()
    found = with_forced(request(lambda tokens: path, nodes), tree, depth)
    size = len(tree)
    assert found.tokens[:size] == tree.tokens
    assert found.parents[:size] == tree.parents
    assert set(found.sources[size:]) <= {SOURCE}
    assert len(found) <= max(size, nodes)
    assert all(found.depths[node] == found.depths[found.parents[node]] + 1 for node in range(1, len(found)))
    assert found.children == {(found.parents[node], found.tokens[node]): node for node in range(1, len(found))}
    assert found.queries == sorted(set(found.queries))
    if len(found) < nodes:  # there was room for all
        expected = path[:depth]
        chosen = iter([*expected, 99])
        if len(found) > size:
            assert walk(found, lambda node: next(chosen), lambda token: False).tokens == [*expected, 99]


@pytest.mark.parametrize("drafts", [True, False])
def test_a_request_without_them_or_without_drafts(drafts: bool) -> None:
    tree = Draft.alone(7)
    assert with_forced(request(None), tree, 5) is tree
    asked = request(lambda tokens: [1])
    asked.drafts = drafts
    assert (with_forced(asked, tree, 5) is tree) != drafts
    assert with_forced(request(lambda tokens: []), tree, 5) is tree


IDS = torch.tensor([[*range(FIRST_WORD, FIRST_WORD + 9)]])


@pytest.mark.parametrize("adapt", [True, False])
@pytest.mark.parametrize("sampling", [{}, {"do_sample": True, "temperature": 0.9}])
def test_texts_are_plain_decoding_s(sampling: dict[str, Any], adapt: bool) -> None:
    """Whether what is sure to follow does so, or not."""
    model = tiny_model(BY_NAME["llama"], "sdpa")
    torch.manual_seed(5)
    plain = model.generate(IDS, max_new_tokens=40, **({"do_sample": False} | sampling))[0].tolist()

    def right(tokens: Sequence[int]) -> list[int]:
        return plain[len(tokens) : len(tokens) + 5]

    config = lade.LookaheadConfig(mode="auto", budget=16, adapt=adapt)
    with lade.Engine(model, config) as engine:
        asked = {"max_new_tokens": 40, "do_sample": False} | sampling
        sure, wrong = (
            engine.submit(IDS, seed=5, forced=forced, **asked) for forced in (right, lambda tokens: [FIRST_WORD] * 4)
        )
        engine.run()
    assert sure.tokens == wrong.tokens == plain
    assert sure.tally.accepted[SOURCE] > 0
    assert sure.tally.lengths.total() <= 10


def test_what_it_raises_ends_the_request_alone() -> None:
    def raises(tokens: Sequence[int]) -> list[int]:
        if len(tokens) > 12:
            raise LookupError("no such grammar")
        return []

    model = tiny_model(BY_NAME["llama"], "sdpa")
    plain = model.generate(IDS, max_new_tokens=12, do_sample=False)[0].tolist()
    with lade.Engine(model, lade.LookaheadConfig(mode="auto", budget=16, adapt=False)) as engine:
        good, bad = (engine.submit(IDS, max_new_tokens=12, do_sample=False, forced=each) for each in (None, raises))
        engine.run()
    assert good.tokens == plain
    assert isinstance(bad.error, LookupError)
    assert bad.tokens == plain[: len(bad.tokens)]


def test_it_must_be_a_function() -> None:
    with lade.Engine(tiny_model(BY_NAME["llama"], "sdpa")) as engine, pytest.raises(ValueError, match="forced must be"):
        engine.submit(IDS, max_new_tokens=5, forced=[3])  # type: ignore[arg-type]
