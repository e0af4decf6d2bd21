"""What a context is: the last tokens of a text or of a path in a draft tree."""

from __future__ import annotations

from lade.base.compiled import compiled

CONTEXT = 4  # tokens of context
LENGTHS = (4, 3, 2, 1)  # that predictions are stored by, longest first
NOTHING = -1  # before the text's first token
SHORT = -2  # in a context of fewer tokens, before them


@compiled
def shortened(a: int, b: int, c: int, length: int) -> tuple[int, int, int]:
    """The tokens before the last one of a context, of which the last `length` tokens count."""
    return a if length > 3 else SHORT, b if length > 2 else SHORT, c if length > 1 else SHORT
