"""Suffix matches against their definition, looked up in quadratic time."""

import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lade.drafters import suffix
from lade.drafters.suffix import OwnText, ReferenceText, SuffixAutomaton

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


# The automaton


@given(PIECES, STREAMS)
def test_following_finds_the_longest_suffix(pieces: list[list[int]], stream: list[int]) -> None:
    automaton, text = SuffixAutomaton(), []
    for piece in pieces:
        automaton.extend(piece)
        text += piece
    cursor = automaton.root()
    for index, token in enumerate(stream):
        cursor = automaton.follow(cursor, token)
        match = longest_suffix(stream[: index + 1], text, occurrences)
        assert cursor.length == len(match)
        following = continuations(text, match)
        assert automaton.next_token(cursor) in (following or [None])


def test_the_empty_match_and_the_end_predict_nothing() -> None:
    automaton = SuffixAutomaton([1, 2])
    assert automaton.next_token(automaton.root()) is None
    cursor = automaton.follow(automaton.root(), 1)
    assert automaton.next_token(cursor) == 2
    assert automaton.next_token(automaton.follow(cursor, 2)) is None


# A request's own text


def test_the_empty_text() -> None:
    own = OwnText()
    assert own.cursor.length == 0
    assert own.next_token(own.cursor) is None
    assert own.follow(own.cursor, 1) == own.cursor


@given(PIECES)
def test_own_cursor_is_the_longest_suffix_that_occurs_earlier(pieces: list[list[int]]) -> None:
    own, text = OwnText(), []
    for piece in pieces:
        own.extend(piece)
        text += piece
        match = longest_suffix(text, text, continuations)
        assert own.cursor.length == len(match)
        assert own.next_token(own.cursor) in (continuations(text, match) or [None])


@given(TEXTS, STREAMS)
def test_own_follow_finds_the_longest_suffix_that_goes_on(text: list[int], drafted: list[int]) -> None:
    own = OwnText(text)
    cursor = own.cursor
    for index, token in enumerate(drafted):
        cursor = own.follow(cursor, token)
        match = longest_suffix(text + drafted[: index + 1], text, continuations)
        assert cursor.length == len(match)
        assert own.next_token(cursor) in (continuations(text, match) or [None])


@given(TEXTS)
def test_the_last_occurrence_speaks(text: list[int]) -> None:
    """Exactly so where no bound cuts the renewal short."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suffix, "RENEWED", 100)
        own = OwnText(text)
    match = longest_suffix(text, text, continuations)
    assert own.next_token(own.cursor) == (continuations(text, match) or [None])[-1]


@pytest.mark.parametrize("earlier", [[3], [3, 3], [5, 3], [5, 3, 3]])
def test_the_last_occurrence_speaks_within_the_bound(earlier: list[int]) -> None:
    """Each time after another token, so that no match is longer than `1 2`."""
    own = OwnText([token for index, last in enumerate([*earlier, 5, 0]) for token in (10 + index, 1, 2, last)][:-1])
    assert own.cursor.length == 2
    assert own.next_token(own.cursor) == 5


@given(PIECES, st.lists(STREAMS, min_size=8, max_size=8))
def test_drafting_leaves_the_text_alone(pieces: list[list[int]], drafts: list[list[int]]) -> None:
    drafted, quiet = OwnText(), OwnText()
    for piece, draft in zip(pieces, drafts, strict=False):
        cursor = drafted.cursor
        for token in draft:
            cursor = drafted.follow(cursor, token)
            drafted.next_token(cursor)
        assert drafted.cursor == quiet.cursor
        drafted.extend(piece)
        quiet.extend(piece)
        assert drafted.cursor == quiet.cursor
        assert drafted.next_token(drafted.cursor) == quiet.next_token(quiet.cursor)


@given(PIECES)
def test_pieces_are_as_good_as_the_whole(pieces: list[list[int]]) -> None:
    whole, grown = OwnText([token for piece in pieces for token in piece]), OwnText()
    for piece in pieces:
        grown.extend(iter(piece))
    assert grown.cursor == whole.cursor
    assert grown.next_token(grown.cursor) == whole.next_token(whole.cursor)


@pytest.mark.parametrize("period", [1, 2, 3])
def test_a_draft_goes_round_a_loop(period: int) -> None:
    """Longer than the loop has been seen, although the text ends after one more round."""
    own = OwnText([9, *[index % period for index in range(4 * period)]])
    cursor, drafted = own.cursor, []
    for _ in range(10 * period):
        drafted.append(own.next_token(cursor))
        cursor = own.follow(cursor, drafted[-1])
    assert drafted == [index % period for index in range(10 * period)]


# A reference


@given(TEXTS)
def test_an_answer_equal_to_the_reference(text: list[int]) -> None:
    reference = ReferenceText(text)
    said = []
    for token in text:
        said.append(reference.next_token(reference.cursor))
        reference.extend([token])
    assert said == text
    assert reference.next_token(reference.cursor) is None


@given(TEXTS, STREAMS)
def test_reference_cursor_is_the_longest_suffix_in_it(text: list[int], output: list[int]) -> None:
    reference = ReferenceText(text)
    for index, token in enumerate(output):
        hypothetical = reference.follow(reference.cursor, token)
        reference.extend([token])
        assert reference.cursor == hypothetical
        match = longest_suffix(output[: index + 1], text, occurrences)
        assert reference.cursor.length == len(match)
        said = reference.next_token(reference.cursor)
        assert said in [*continuations(text, match[-suffix.SURE :]), None]
        assert said is not None or not match or match[-1] == text[-1]


@given(TEXTS, STREAMS, STREAMS)
def test_drafting_leaves_the_reference_alone(text: list[int], output: list[int], draft: list[int]) -> None:
    drafted, quiet = ReferenceText(text), ReferenceText(text)
    for token in output:
        cursor = drafted.cursor
        for guess in draft:
            cursor = drafted.follow(cursor, guess)
        drafted.extend([token])
        quiet.extend([token])
        assert drafted.cursor == quiet.cursor


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
    cursor, drafted = reference.cursor, []
    for _ in following:
        drafted.append(reference.next_token(cursor))
        cursor = reference.follow(cursor, drafted[-1])
    assert drafted == following


def test_a_drafted_edit_goes_on_where_the_draft_was() -> None:
    reference = ReferenceText(BLOCKWISE)
    reference.extend(BLOCKWISE[:12])
    cursor = reference.cursor
    for token in BLOCKWISE[12:40]:
        cursor = reference.follow(cursor, token)
    assert reference.next_token(reference.follow(cursor, 3)) == 111


def test_what_is_not_in_the_reference_predicts_nothing() -> None:
    reference = ReferenceText([1, 2, 3])
    reference.extend([UNKNOWN])
    assert reference.cursor.length == 0
    assert reference.next_token(reference.cursor) is None


def test_an_empty_reference_predicts_nothing() -> None:
    reference = ReferenceText([])
    assert reference.next_token(reference.cursor) is None
    reference.extend([1, 2])
    assert reference.next_token(reference.cursor) is None


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
def test_a_hypothetical_token_costs_few_lookups(name: str) -> None:
    """Each asked of the longest match, which no amortisation pays for."""
    automaton, transitions = counted(LONG[name])
    transitions.reads = 0
    for token in {*LONG[name][:100], -1}:
        before = transitions.reads
        automaton.follow(automaton.repeated(), token)
        assert transitions.reads - before <= 8 * LENGTH.bit_length()
