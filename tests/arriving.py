"""Answers that call functions, and the pieces in which a text may arrive."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import strategies as st

CALL = '<tool_call>\n{"name": "stop", "arguments": {"a": "é"}}\n</tool_call>'


def pieces_of(text: str) -> st.SearchStrategy[list[str]]:
    """Some, of which together it consists."""
    cuts = st.lists(st.integers(0, len(text)), max_size=4).map(sorted)
    return cuts.map(lambda cuts: [text[begin:end] for begin, end in pairwise([0, *cuts, len(text)])])


ANSWERS = st.lists(st.sampled_from(["Let me see. ", CALL, "<tool", "\n", "Done"]), max_size=5).map("".join)
ARRIVING = ANSWERS.flatmap(pieces_of)
