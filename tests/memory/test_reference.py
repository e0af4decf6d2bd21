"""Where the output stands in a reference, against its definition, looked up in quadratic time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from occurrences import STREAMS, TEXTS, longest_suffix, occurrences
from rowarrays import memory_of, row_of

from lade.memory.places import of_reference
from lade.memory.pools import fresh_pool
from lade.memory.reference import LEAST_ANCHOR, MATCHED, NEXT, follow_output
from lade.memory.row import REFERENCE, Row

pytestmark = pytest.mark.usefixtures("as_python")

POOL = fresh_pool()
BLOCKS = [[100 + block, 1, 2, 3] for block in range(20)]  # 1 2 3 alone does not say in which block
BLOCKWISE = [token for block in BLOCKS for token in block]
UNKNOWN = 7


def reference_of(text: list[int]) -> Row:
    return row_of(memory_of([0], reference=text, pool=POOL))


def follow(row: Row, output: list[int]) -> None:
    for token in output:
        follow_output(row.ints, REFERENCE, token)


def drafted(row: Row, count: int) -> list[int]:
    """What the text goes on with where it stands; -1 outside it."""
    return [of_reference(row.ints, row.ints[REFERENCE + NEXT] + step) for step in range(count)]


@given(TEXTS)
def test_an_answer_equal_to_the_reference(text: list[int]) -> None:
    row = reference_of(text)
    for index, token in enumerate(text):
        assert drafted(row, len(text) + 2 - index) == [*text[index:], -1, -1]
        follow(row, [token])
    assert drafted(row, 2) == [-1, -1]


@given(TEXTS, st.lists(STREAMS | TEXTS, max_size=2))
def test_the_match_is_the_longest_suffix_of_the_output_in_it(text: list[int], outputs: list[list[int]]) -> None:
    row, output = reference_of(text), [token for each in outputs for token in each]
    for index, token in enumerate(output):
        follow(row, [token])
        match = longest_suffix(output[: index + 1], lambda _, suffix: occurrences(text, suffix))
        assert row.ints[REFERENCE + MATCHED] == len(match)
        assert row.ints[REFERENCE + NEXT] in (occurrences(text, match[-LEAST_ANCHOR:]) if match else [-1])


@pytest.mark.parametrize(
    ("equal", "edit", "following"),
    [
        pytest.param(40, [UNKNOWN, 1], [2, 3, 111, 1], id="replaced"),
        pytest.param(38, [UNKNOWN, 2], [3, 110, 1, 2], id="inserted"),
        pytest.param(40, [2], [3, 111, 1, 2], id="deleted"),
        pytest.param(40, [3, UNKNOWN, 110], [1, 2, 3, 111], id="inserted what occurs further on"),
        pytest.param(40, [105, 1, 2, 3], [106, 1, 2, 3], id="moved back"),
    ],
)
def test_it_goes_on_behind_an_edit(equal: int, edit: list[int], following: list[int]) -> None:
    row = reference_of(BLOCKWISE)
    follow(row, BLOCKWISE[:equal])  # 40: ten whole blocks
    follow(row, edit)
    assert drafted(row, len(following)) == following


def test_what_is_not_in_the_reference_predicts_nothing() -> None:
    row = reference_of([1, 2, 3])
    follow(row, [UNKNOWN])
    assert (row.ints[REFERENCE + MATCHED], row.ints[REFERENCE + NEXT]) == (0, -1)
    assert drafted(row, 1) == [-1]


def test_an_empty_reference_predicts_nothing() -> None:
    row = reference_of([])
    assert drafted(row, 1) == [-1]
    follow(row, [1, 2])
    assert drafted(row, 1) == [-1]
