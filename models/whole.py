"""What becomes of a damaged file of a model: one line that names the model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from json import JSONDecodeError

from lade.base.shown import first_line


@contextmanager
def whole(source: str, part: str) -> Iterator[None]:
    """ValueError of one line that names the model, where transformers raises something else at a damaged file, of many
    kinds, or lists all that it would have taken."""
    from torch import OutOfMemoryError

    try:
        yield
    except (OSError, ImportError, MemoryError, OutOfMemoryError, AssertionError):
        raise
    except Exception as error:
        if isinstance(error, ValueError) and not isinstance(error, JSONDecodeError) and "\n" not in str(error):
            raise
        told = f"{type(error).__name__}: {first_line(error).rstrip(':')}"
        raise ValueError(
            f"path_or_name must be a whole causal language model, got {source!r}, whose {part} does not load ({told})"
        ) from error
