"""A rank's part of a tree behind the tokens that it lacks."""

from hypothesis import given, settings
from hypothesis import strategies as st

from lade.core.tree import TreeBuilder
from lade.distributed.cut import cut
from lade.distributed.lagging import behind


@settings(max_examples=40)
@given(st.data())
def test_parts(data: st.DataObject) -> None:
    """Tokens, depths and ancestors are those of the whole text; what stays of a path is its computed beginning."""
    builder = TreeBuilder(7)
    for token in range(data.draw(st.integers(1, 20))):
        builder.append(data.draw(st.integers(0, len(builder.tokens) - 1)), token, "any")
    builder.queries = set(range(len(builder.tokens)))
    draft = builder.build()
    share = data.draw(st.sampled_from([each for each in cut([draft], 3) if each.queries]))
    lacking = data.draw(st.lists(st.integers(0, 9), max_size=4))
    part = behind(draft, lacking, share.nodes[0], [node for _, node in share.queries])

    def text(tree_tokens: list[int], parents: list[int], node: int) -> list[int]:
        found = []
        while node >= 0:
            found.append(tree_tokens[node])
            node = parents[node]
        return found[::-1]

    assert part.draft.parents[0] == -1
    for node in share.nodes[0]:
        number = part.numbers[node]
        own = text(part.draft.tokens, part.draft.parents, number)
        assert own == lacking + text(draft.tokens, draft.parents, node)
        assert part.draft.depths[number] == len(own) - 1
    assert part.draft.queries == [part.numbers[node] for _, node in share.queries]

    node = data.draw(st.integers(0, len(draft) - 1))
    path = []
    while node >= 0:
        path.insert(0, node)
        node = draft.parents[node]
    kept, computed = part.kept(path)
    assert path[:computed] == [node for node in path if node in share.nodes[0]]
    assert kept == [*range(len(lacking)), *(part.numbers[node] for node in path[:computed])]
