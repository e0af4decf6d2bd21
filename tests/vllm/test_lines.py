"""Whose lines of the logits are whose: against all ways to share them out."""

from collections.abc import Sequence
from itertools import accumulate, pairwise, product

from hypothesis import given
from hypothesis import strategies as st

from lade.vllm.lines import spans

BOUNDS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=4)


def naive(fewest: Sequence[int], most: Sequence[int], total: int) -> list[range | None]:
    counts = product(*(range(few, many + 1) for few, many in zip(fewest, most, strict=True)))
    ways = [[range(*pair) for pair in pairwise(accumulate(way, initial=0))] for way in counts if sum(way) == total]
    if not ways:
        return [None] * len(fewest)
    return [own[0] if len(set(own)) == 1 else None for own in zip(*ways, strict=True)]


@given(BOUNDS, st.integers(0, 12))
def test_lines_are_known_where_one_way_is_left(bounds: list[tuple[int, int]], total: int) -> None:
    fewest, most = [list(each) for each in zip(*bounds, strict=True)] if bounds else ([], [])
    assert spans(fewest, most, total) == naive(fewest, most, total)
