"""The cut of trees: every wanted node is one rank's, shares are closed, and none is larger than promised."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lade.core.tree import Draft, TreeBuilder
from lade.distributed.cut import cut
from lade.drafters.window import Window


@st.composite
def trees(draw: st.DrawFn) -> Draft:
    """Chains, bushes, roots alone; some nodes whose logits nobody wants."""
    builder = TreeBuilder(0)
    for token in range(1, draw(st.integers(1, 40))):
        builder.append(draw(st.integers(0, len(builder.tokens) - 1)), token, "any")
    nodes = range(len(builder.tokens))
    builder.queries |= {node for node in nodes if draw(st.booleans())}
    return builder.build()


@settings(max_examples=40)
@given(st.lists(trees(), min_size=1, max_size=4), st.integers(1, 5), st.booleans())
def test_shares(drafts: list[Draft], ranks: int, packed: bool) -> None:
    shares = cut(drafts, ranks, packed)
    assert len(shares) == ranks
    found = sorted(query for share in shares for query in share.queries)
    assert found == [(row, node) for row, draft in enumerate(drafts) for node in draft.queries]
    for share in shares:
        assert list(share.queries) == sorted(share.queries)
        for row, node in share.queries:
            assert node in share.nodes[row]
        for draft, nodes in zip(drafts, share.nodes, strict=True):
            assert list(nodes) == sorted(set(nodes))
            assert all(draft.parents[node] in nodes for node in nodes if node)
    whole = sum(map(len, drafts))
    largest = max(share.size for share in shares)
    assert largest < whole or not any(share.queries for share in shares[1:])


@settings(max_examples=40)
@given(trees(), st.integers(2, 5))
def test_the_largest_share(draft: Draft, ranks: int) -> None:
    """At most an equal part of the tree and the ancestors of one node."""
    asked = TreeBuilder(0)
    asked.tokens, asked.parents, asked.depths = draft.tokens, draft.parents, draft.depths
    asked.sources, asked.queries = draft.sources, set(range(len(draft)))
    largest = max(share.size for share in cut([asked.build()], ranks))
    assert largest <= -(-len(draft) // ranks) + max(draft.depths)


@pytest.mark.parametrize(("width", "ngram", "guesses"), [(15, 5, 15), (7, 5, 7), (20, 7, 20), (4, 3, 0), (15, 3, 15)])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_shares_of_a_window(width: int, ngram: int, guesses: int, ranks: int) -> None:
    """The bound of the paper's split: columns and guesses are shared, level 0 is not."""
    window, builder = Window(range(100), width, ngram, 0), TreeBuilder(0)
    for guess in range(guesses):
        builder.add_path(0, [1000 * guess + level for level in range(100, 99 + ngram)], "ngram")
    candidates = len(builder.tokens) - 1
    window.add(builder, width)
    largest = max(share.size for share in cut([builder.build()], ranks))
    assert largest <= width + -(-(ngram - 2) * width // ranks) + -(-candidates // ranks) + ngram
