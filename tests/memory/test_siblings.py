"""What the model predicted after other drafts of a text's last token."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from naivemixture import weighted
from rowarrays import memory_of, place, predicted, row_of, write

from lade.memory.automaton import TOKENS
from lade.memory.predictions import TOP
from lade.memory.row import OWN, SIBLING_MASSES
from lade.memory.row import SIBLINGS as FIELDS
from lade.memory.rowmemory import RowMemory
from lade.memory.siblings import add_sibling, begin_siblings
from lade.memory.stages import SIBLINGS

pytestmark = pytest.mark.usefixtures("as_python")

Sibling = tuple[float, tuple[Sequence[int], Sequence[float]]]  # path probability; tokens and their probabilities
EIGHTHS = st.integers(1, 8).map(lambda part: part / 8)


def siblings_of(tokens: int) -> st.SearchStrategy[list[Sibling]]:
    """Predictions of two of so many tokens."""
    pair = st.permutations(range(tokens)).map(lambda order: (order[:2], [0.5, 0.25]))
    return st.lists(st.tuples(EIGHTHS, pair), min_size=1, max_size=6)


def teach(memory: RowMemory, siblings: Sequence[Sibling], length: int) -> None:
    """What goes on from a text of this length."""
    row = row_of(memory)
    begin_siblings(row.ints, row.floats, FIELDS, SIBLING_MASSES, length)
    for weight, (tokens, probabilities) in siblings:
        lines = [0, 0, *tokens], [0.0, 0.0, *probabilities]
        add_sibling(row.ints, row.floats, FIELDS, SIBLING_MASSES, weight, *lines, 1, len(tokens))


@given(siblings=siblings_of(TOP))
def test_they_predict_the_mean_by_path_probability_likeliest_first(siblings: list[Sibling]) -> None:
    memory = memory_of([1, 2])
    teach(memory, siblings, 2)
    place(memory)
    bucket, tokens, masses = predicted(memory, SIBLINGS)
    assert bucket == 0
    assert dict(zip(tokens, masses, strict=True)) == pytest.approx(weighted(siblings))
    assert masses == sorted(masses, reverse=True)


@given(siblings=siblings_of(3 * TOP))
def test_of_many_tokens_eight_are_kept_and_none_is_overstated(siblings: list[Sibling]) -> None:
    memory = memory_of([1, 2])
    teach(memory, siblings, 2)
    place(memory)
    _, tokens, masses = predicted(memory, SIBLINGS)
    mean = weighted(siblings)
    assert len(tokens) == len({*tokens}) == min(TOP, len(mean))
    assert all(mass <= mean[token] + 1e-9 for token, mass in zip(tokens, masses, strict=True))
    assert sum(masses) <= 1 + 1e-9
    assert masses == sorted(masses, reverse=True)


def test_they_go_on_from_their_own_text_alone_and_from_no_node_behind_it() -> None:
    memory = memory_of([1, 2])
    teach(memory, [(0.5, ([4, 5], [0.5, 0.25]))], 3)
    assert said_at(memory, place(memory)) == []  # it has not grown yet
    write(memory, [3])
    assert row_of(memory).ints[OWN + TOKENS] == 3
    assert said_at(memory, place(memory)) == [4, 5]
    assert said_at(memory, place(memory, [4])) == []
    write(memory, [4])  # by a step that learned nothing
    assert said_at(memory, place(memory)) == []


def test_without_siblings_they_predict_nothing() -> None:
    memory = memory_of([1, 2])
    assert said_at(memory, place(memory)) == []
    teach(memory, [(0.5, ([4, 5], [0.5, 0.25]))], 2)
    teach(memory, [], 2)
    assert said_at(memory, place(memory)) == []


def said_at(memory: RowMemory, node: int) -> list[int]:
    return predicted(memory, SIBLINGS, node)[1]
