"""Attention in the first way that fits: which ways are tried when, and which one stays, depends on time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from lade.target.available import ways_of


@contextmanager
def untried() -> Iterator[None]:
    """Of targets that are made inside."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lade.target.model.ways_of", lambda *asked: replace(ways_of(*asked), timed=False))
        yield
