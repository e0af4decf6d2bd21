"""Suffix matches against their definition, looked up in quadratic time."""

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lade.memory import suffix
from lade.memory.suffix import NOWHERE, OwnText, ReferenceText, SuffixAutomaton

TEXTS = st.integers(1, 4).flatmap(lambda size: st.lists(st.integers(1, size), max_size=40))
PIECES = st.lists(TEXTS.map(lambda text: text[:7]), max_size=8)
STREAMS = st.lists(st.integers(1, 5), max_size=12)  # 5 is in no text

Search = Callable[[list[int], list[int]], list[int]]


def occurrences(text: list[int], match: list[int]) -> list[int]:
    """The indices behind a match, ascending; the text's end is one of them where the match is a suffix."""
    return [end for end in range(len(match), len(text) + 1) if text[end - len(match) : end] == match]


def continuations(text: list[int], match: list[int]) -> list[int]:
    """What follows a match, first occurrence first; nothing follows the empty one."""
    return [text[end] for end in occurrences(text, match) if end < len(text)] if match else []


def longest_suffix(stream: list[int], text: list[int], search: Search) -> list[int]:
    """The longest suffix that the search finds in the text; the empty one at the worst."""
    return next((stream[start:] for start in range(len(stream)) if search(text, stream[start:])), [])


def drafted(text: OwnText | ReferenceText, count: int) -> list[int | None]:
    """What the text goes on with where it stands."""
    return [text.at(text.cursor.end + step) for step in range(count)]


# The automaton


@given(PIECES, STREAMS)
def test_following_finds_the_longest_suffix(pieces: list[list[int]], stream: list[int]) -> None:
    automaton, text = SuffixAutomaton(), []
    for piece in pieces:
        automaton.extend(piece)
        text += piece
    cursor = NOWHERE
    for index, token in enumerate(stream):
        cursor = automaton.follow(cursor, token)
        match = longest_suffix(stream[: index + 1], text, occurrences)
        assert cursor.length == len(match)
        assert cursor.end in (occurrences(text, match) if match else [-1])
        assert not continuations(text, match) or cursor.end < len(text)  # where something ever followed, it is known


# A request's own text


def test_the_empty_text() -> None:
    assert OwnText().cursor == OwnText([1]).cursor == OwnText([1, 2]).cursor == NOWHERE


@given(PIECES)
def test_own_cursor_is_the_longest_suffix_that_occurs_earlier(pieces: list[list[int]]) -> None:
    own, text = OwnText(), []
    for piece in pieces:
        own.extend(piece)
        text += piece
        match = longest_suffix(text, text, continuations)
        assert own.cursor.length == len(match)
        assert own.cursor.end in (occurrences(text, match)[:-1] if match else [-1])


@given(TEXTS)
def test_the_last_occurrence_is_used(text: list[int]) -> None:
    """Exactly so where no bound cuts the renewal short."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suffix, "MATCHING", replace(suffix.MATCHING, updated=100))
        own = OwnText(text)
    match = longest_suffix(text, text, continuations)
    assert own.cursor.end == (occurrences(text, match)[-2] if match else -1)


@pytest.mark.parametrize("earlier", [[3], [3, 3], [5, 3], [5, 3, 3]])
def test_the_last_occurrence_is_used_within_the_bound(earlier: list[int]) -> None:
    """Each time after another token, so that no match is longer than `1 2`."""
    own = OwnText([token for index, last in enumerate([*earlier, 5, 0]) for token in (10 + index, 1, 2, last)][:-1])
    assert own.cursor.length == 2
    assert drafted(own, 1) == [5]


@given(TEXTS.filter(lambda text: OwnText(text).cursor.length > 0), st.integers(1, 60))
def test_own_text_goes_on_as_it_did_and_then_round_and_round(text: list[int], count: int) -> None:
    """As if every token that was taken from the text had been written behind it."""
    own, grown = OwnText(text), list(text)
    for step in range(count):
        grown.append(grown[own.cursor.end + step])
    assert drafted(own, count) == grown[len(text) :]


@given(PIECES)
def test_pieces_are_as_good_as_the_whole(pieces: list[list[int]]) -> None:
    whole, grown = OwnText([token for piece in pieces for token in piece]), OwnText()
    for piece in pieces:
        grown.extend(iter(piece))
    assert grown.cursor == whole.cursor


@pytest.mark.parametrize("period", [1, 2, 3])
def test_a_draft_goes_round_a_loop(period: int) -> None:
    """Longer than the loop has been seen, although the text ends after one more round."""
    own = OwnText([9, *[index % period for index in range(4 * period)]])
    assert drafted(own, 10 * period) == [index % period for index in range(10 * period)]


# A reference


@given(TEXTS)
def test_an_answer_equal_to_the_reference(text: list[int]) -> None:
    reference = ReferenceText(text)
    for index, token in enumerate(text):
        assert drafted(reference, len(text) + 2 - index) == [*text[index:], None, None]
        reference.extend([token])
    assert drafted(reference, 2) == [None, None]


@given(TEXTS, STREAMS)
def test_reference_cursor_is_the_longest_suffix_in_it(text: list[int], output: list[int]) -> None:
    reference = ReferenceText(text)
    for index, token in enumerate(output):
        reference.extend([token])
        match = longest_suffix(output[: index + 1], text, occurrences)
        assert reference.cursor.length == len(match)
        assert reference.cursor.end in (occurrences(text, match[-suffix.MATCHING.anchor :]) if match else [-1])


@given(TEXTS, PIECES)
def test_output_in_pieces_is_as_good_as_the_whole(text: list[int], pieces: list[list[int]]) -> None:
    whole, grown = ReferenceText(text), ReferenceText(text)
    whole.extend([token for piece in pieces for token in piece])
    for piece in pieces:
        grown.extend(iter(piece))
    assert grown.cursor == whole.cursor


BLOCKS = [[100 + block, 1, 2, 3] for block in range(20)]  # 1 2 3 alone does not say in which block
BLOCKWISE = [token for block in BLOCKS for token in block]
UNKNOWN = 7


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
def test_reference_goes_on_behind_an_edit(equal: int, edit: list[int], following: list[int]) -> None:
    reference = ReferenceText(BLOCKWISE)
    reference.extend(BLOCKWISE[:equal])  # 40: ten whole blocks
    reference.extend(edit)
    assert drafted(reference, len(following)) == following


def test_what_is_not_in_the_reference_predicts_nothing() -> None:
    reference = ReferenceText([1, 2, 3])
    reference.extend([UNKNOWN])
    assert reference.cursor == NOWHERE
    assert drafted(reference, 1) == [None]


def test_an_empty_reference_predicts_nothing() -> None:
    reference = ReferenceText([])
    assert drafted(reference, 1) == [None]
    reference.extend([1, 2])
    assert drafted(reference, 1) == [None]


# What it costs, counted in lookups of a state's transitions

LENGTH = 100_000


class Counted(list[dict[int, int]]):
    """Transitions that count how often they are asked for."""

    reads = 0

    def __getitem__(self, index: Any) -> Any:
        self.reads += 1
        return super().__getitem__(index)


def counted(text: Iterable[int]) -> tuple[SuffixAutomaton, Counted]:
    automaton = SuffixAutomaton()
    automaton._next = transitions = Counted(automaton._next)
    automaton.extend(text)
    return automaton, transitions


def noise(vocabulary: int) -> list[int]:
    return random.Random(0).choices(range(vocabulary), k=LENGTH)


LONG = {
    "random": noise(32_000),
    "binary": noise(2),
    "one token": [7] * LENGTH,
    "one token at the end": [1, *[7] * LENGTH][:LENGTH],
    "one token at the start": [*[7] * LENGTH, 1][-LENGTH:],
    "periodic": [index % 50 for index in range(LENGTH)],
}


@pytest.mark.parametrize("name", LONG)
def test_a_long_text_costs_a_few_lookups_per_token(name: str) -> None:
    automaton, transitions = counted(LONG[name])
    assert transitions.reads <= 16 * LENGTH
    assert len(automaton) <= 2 * LENGTH
    assert sum(map(len, list(transitions))) <= 3 * LENGTH


@pytest.mark.parametrize("name", LONG)
def test_a_long_output_costs_a_few_lookups_per_token(name: str) -> None:
    """Of the text itself with every hundredth token unknown or another, each of which ends a long match."""
    automaton, transitions = counted(LONG[name])
    transitions.reads, cursor = 0, NOWHERE
    for index, token in enumerate(LONG[name]):
        cursor = automaton.follow(cursor, (-1, LONG[name][0])[index // 100 % 2] if index % 100 == 99 else token)
    assert transitions.reads <= 4 * LENGTH
