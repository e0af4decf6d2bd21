"""Where a string occurs in a text, looked up in quadratic time."""

from collections.abc import Callable

from hypothesis import strategies as st

TEXTS = st.integers(1, 4).flatmap(lambda size: st.lists(st.integers(1, size), max_size=40))
STREAMS = st.lists(st.integers(1, 5), max_size=12)  # 5 is in no text

Search = Callable[[list[int], list[int]], list[int]]


def occurrences(text: list[int], match: list[int]) -> list[int]:
    """The indices behind a match, ascending; the text's end is one of them where the match is a suffix."""
    return [end for end in range(len(match), len(text) + 1) if text[end - len(match) : end] == match]


def longest_suffix(text: list[int], search: Search) -> list[int]:
    """The longest suffix that the search finds in the text; the empty one at the worst."""
    return next((text[start:] for start in range(len(text)) if search(text, text[start:])), [])


def longest_repeated(text: list[int]) -> int:
    """The length of the longest suffix that occurs earlier too."""
    return len(longest_suffix(text, lambda text, match: occurrences(text[:-1], match)))
