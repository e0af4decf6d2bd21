"""What a context is: the last tokens of a text or of a path in a draft tree."""

from __future__ import annotations

CONTEXT = 4  # tokens of context
LENGTHS = (4, 3, 2, 1)  # that predictions are stored by, longest first
NOTHING = -1  # before the text's first token
SHORT = -2  # in a context of fewer tokens, before them
