"""Texts that an output may repeat: what a user may give, as token ids per row. Knows no model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def references_of(reference: Any, rows: int | None = None) -> list[Sequence[int] | None] | None:
    """One text per row, or `None` where there is none.

    Args:
        reference: token ids (a list or a 1-D tensor) for all rows, or a list with one such text or `None` per row.
        rows: of the batch; `None` where it is not known yet.

    Raises:
        ValueError: it is neither, or has another number of rows.
    """
    if reference is None:
        return None
    if isinstance(reference, torch.Tensor):
        reference = reference.tolist()
    if not isinstance(reference, list | tuple):
        kind = type(reference).__name__
        raise ValueError(f"reference of type {kind}: allowed are token ids, or a list with token ids per row")
    texts = [reference] if _is_text(reference) else [_listed(item) for item in reference]
    if not all(text is None or _is_text(text) for text in texts):
        raise ValueError("reference holds something else than token ids: allowed are integers of at least 0")
    if rows is None:
        return texts
    if len(texts) not in (1, rows):
        raise ValueError(f"reference of {len(texts)} texts: allowed is one, or one for each of the {rows} rows")
    return texts * rows if len(texts) == 1 else texts


def _listed(item: Any) -> Any:
    return item.tolist() if isinstance(item, torch.Tensor) else item


def _is_text(item: Any) -> bool:
    return isinstance(item, list | tuple) and all(type(token) is int and token >= 0 for token in item)
