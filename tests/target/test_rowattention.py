"""How rows' tokens are cut for attention."""

from random import Random

import torch
from hypothesis import given
from hypothesis import strategies as st

from lade.target.rowattention import Cuts


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), min_size=1, max_size=6), st.integers(0, 3), st.randoms()
)
def test_cuts_give_each_spans_tokens(gaps_and_sizes: list[tuple[int, int]], rest: int, order: Random) -> None:
    spans, done = list[tuple[int, int]](), 0
    for gap, size in gaps_and_sizes:
        spans.append((done + gap, done + gap + size))
        done += gap + size
    order.shuffle(spans)
    states = torch.arange(done + rest).view(1, 1, -1, 1)
    parts = Cuts.at(spans, done + rest).parts(states)
    assert [part.flatten().tolist() for part in parts] == [list(range(*span)) for span in spans]
