"""The walk: it emits what decoding one token at a time would, and follows every branch that the model takes."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lade.core.request import Verdict
from lade.core.tree import Draft, TreeBuilder
from lade.core.verify import walk

ROOT = 0


def draft_of(*paths: Sequence[int], silent: Sequence[Sequence[int]] = ()) -> Draft:
    """A draft of these paths; nobody asks for the logits of the silent ones."""
    builder = TreeBuilder(ROOT)
    for path in paths:
        builder.add_path(0, list(path), "test")
    for path in silent:
        builder.add_path(0, list(path), "test", query=False)
    return builder.build()


class Model:
    """Continues a text by a fixed rule; counts what it is asked and refuses to speak for nodes without logits."""

    def __init__(self, draft: Draft, text: Sequence[int], stop: int | None = None) -> None:
        self.draft, self.text, self.stop = draft, list(text), stop
        self.asked: list[int] = []
        self.emitted: list[int] = []

    def choose(self, node: int) -> int:
        assert node in self.draft.queries
        assert self.draft.depths[node] == len(self.emitted)
        self.asked.append(node)
        return self.text[len(self.emitted)]

    def emit(self, token: int) -> bool:
        self.emitted.append(token)
        return token == self.stop

    def walk(self) -> Verdict:
        verdict = walk(self.draft, self.choose, self.emit)
        assert verdict.tokens == self.emitted
        assert verdict.path == self.asked  # one choice per visited node, as sampling needs
        return verdict


def test_never_accepts() -> None:
    assert Model(draft_of([1, 2], [3, 4]), [9, 9]).walk() == Verdict([0], [9])


def test_sometimes_accepts() -> None:
    assert Model(draft_of([1, 2, 3], [4, 5]), [1, 2, 9]).walk() == Verdict([0, 1, 2], [1, 2, 9])


def test_always_accepts_with_a_bonus_token() -> None:
    """A full match of three guesses yields four tokens."""
    assert Model(draft_of([1, 2, 3]), [1, 2, 3, 4]).walk() == Verdict([0, 1, 2, 3], [1, 2, 3, 4])


def test_a_draft_of_the_root_alone() -> None:
    assert Model(draft_of(), [5]).walk() == Verdict([0], [5])


@pytest.mark.parametrize(("text", "path"), [([1, 2, 9], [0, 1, 2]), ([1, 3, 9], [0, 1, 3]), ([1, 4, 9], [0, 1, 4])])
def test_the_whole_frontier_is_followed(text: list[int], path: list[int]) -> None:
    """Three n-grams share their first token; whichever goes on as the model does is followed, not just the first."""
    assert Model(draft_of([1, 2], [1, 3], [1, 4]), text).walk() == Verdict(path, text)


def test_a_node_without_logits_ends_the_walk() -> None:
    """Its token is emitted, being its parent's choice, but it is not part of the path: it is the next root."""
    assert Model(draft_of([1], silent=[[1, 2, 3]]), [1, 2, 3]).walk() == Verdict([0, 1], [1, 2])


@pytest.mark.parametrize(("stop", "tokens"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (4, [1, 2, 3, 4])])
def test_a_stop_inside_a_path(stop: int, tokens: list[int]) -> None:
    model = Model(draft_of([1, 2, 3]), [1, 2, 3, 4], stop)
    assert model.walk() == Verdict([0, 1, 2, 3][: len(tokens)], tokens)


TOKENS = st.integers(1, 3)
LINES = st.lists(st.lists(TOKENS, max_size=5), max_size=8)


@given(LINES, LINES, st.lists(TOKENS, min_size=12, max_size=12), st.sampled_from([None, 1, 2, 3]))
def test_walk_is_decoding_one_by_one(
    paths: list[list[int]], silent: list[list[int]], text: list[int], stop: int | None
) -> None:
    draft = draft_of(*paths, silent=silent)
    verdict = Model(draft, text, stop).walk()
    assert verdict.tokens == text[: len(verdict.tokens)]
    prefixes = {tuple(path[:length]) for path in paths for length in range(len(path) + 1)}
    matched = next(length for length in range(12) if tuple(text[: length + 1]) not in prefixes)
    ends = text.index(stop) if stop in text else 12
    assert len(verdict.tokens) == min(matched, ends) + 1
    assert [draft.tokens[node] for node in verdict.path[1:]] == verdict.tokens[:-1]
