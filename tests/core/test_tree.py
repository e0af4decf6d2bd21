"""Trees: what a node sees, against the definition; and drafts, against a set of paths."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lade.core.tree import Draft, TreeBuilder, ancestor_matrix


@st.composite
def trees(draw: st.DrawFn) -> list[int]:
    """Parents of up to 70 nodes, so that a row of the matrix takes several machine words."""
    size = draw(st.integers(1, 70))
    return [-1, *(draw(st.integers(0, node - 1)) for node in range(1, size))]


def sees(parents: list[int], node: int, other: int) -> bool:
    """The definition: itself, or what its parent sees."""
    return node == other or (0 < node < len(parents) and sees(parents, parents[node], other))


@given(trees(), st.integers(0, 20))
def test_ancestors_are_the_definition(parents: list[int], padding: int) -> None:
    size = len(parents) + padding
    expected = [[sees(parents, node, other) for other in range(size)] for node in range(size)]
    assert ancestor_matrix(parents, size).tolist() == expected


@given(trees())
def test_ancestors_without_padding(parents: list[int]) -> None:
    matrix = ancestor_matrix(parents)
    assert matrix.dtype == torch.bool
    assert torch.equal(matrix, ancestor_matrix(parents, len(parents)))


def test_ancestors_of_a_chain_are_causal() -> None:
    assert torch.equal(ancestor_matrix(list(range(-1, 150))), torch.ones(151, 151).tril().bool())


# Drafts

TOKENS = st.integers(0, 3)  # few, so that paths share prefixes
PATHS = st.lists(st.tuples(st.integers(0, 10), st.lists(TOKENS, max_size=5), st.booleans()), max_size=12)


def words_of(draft: Draft, node: int) -> tuple[int, ...]:
    """The tokens from the root's child down to a node."""
    return () if node == 0 else (*words_of(draft, draft.parents[node]), draft.tokens[node])


@given(PATHS)
def test_builder_is_a_set_of_paths(paths: list[tuple[int, list[int], bool]]) -> None:
    builder = TreeBuilder(root=7)
    sources, queries = {(): "root"}, {()}  # by the path to a node
    for index, (start, tokens, query) in enumerate(paths):
        start %= len(builder.tokens)
        above = words_of(builder.build(), start)
        last = builder.add_path(start, tokens, source=f"path {index}", query=query)
        for length in range(1, len(tokens) + 1):
            sources.setdefault((*above, *tokens[:length]), f"path {index}")
            queries |= {(*above, *tokens[:length])} if query else set()
        assert words_of(builder.build(), last) == (*above, *tokens)
    draft = builder.build()
    found = [words_of(draft, node) for node in range(len(draft))]
    assert draft.tokens[0] == 7
    assert sorted(found) == sorted(sources)  # every prefix once, and nothing else
    assert draft.sources == [sources[path] for path in found]
    assert draft.depths == [len(path) for path in found]
    assert draft.queries == [node for node, path in enumerate(found) if path in queries]
    assert draft.parents[0] == -1
    assert all(0 <= parent < node for node, parent in enumerate(draft.parents) if node)
    assert draft.children == {(draft.parents[node], draft.tokens[node]): node for node in range(1, len(draft))}
    for place in itertools.product(range(len(draft)), {*draft.tokens, 99}):
        assert draft.child(*place) == draft.children.get(place)
    assert TreeBuilder.of(draft).build() == draft


def test_shared_prefixes_share_nodes() -> None:
    builder = TreeBuilder(root=1)
    first = builder.add_path(0, [5, 6, 7], "a")
    second = builder.add_path(0, (5, 6, 8), "b")
    draft = builder.build()
    assert draft.tokens == [1, 5, 6, 7, 8]
    assert draft.parents == [-1, 0, 1, 2, 2]
    assert (first, second) == (3, 4)
    assert draft.sources == ["root", "a", "a", "a", "b"]


@pytest.mark.parametrize("query", [True, False])
def test_an_empty_path_is_its_parent(query: bool) -> None:
    builder = TreeBuilder(root=1)
    assert builder.add_path(0, [], "a", query=query) == 0
    assert len(builder.build()) == 1


def test_a_node_may_be_asked_for_later() -> None:
    builder = TreeBuilder(root=1)
    builder.add_path(0, [5, 6], "a", query=False)
    assert builder.build().queries == [0]
    builder.add_path(0, [5], "b")
    assert builder.build().queries == [0, 1]


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), min_size=1, max_size=6), st.integers(1, 3))
def test_below_a_chain_stands_the_tree_that_hangs_from_it(paths: list[list[int]], above: int) -> None:
    whole, alone = TreeBuilder(9), TreeBuilder(8)
    root = whole.add_path(0, [8] * above, "above", query=False)
    for path in paths:
        whole.add_path(root, path, "test")
        alone.add_path(0, path, "test")
    assert whole.below(root).build() == alone.build()
