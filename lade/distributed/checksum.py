"""A checksum of the texts of a call and of its drafts, which equal ones share: 32 bits, computed as the texts grow."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from lade.core.request import Request
from lade.core.tree import Draft


def of_integers(numbers: Sequence[int], before: int = 0) -> int:
    """CRC-32 of int64 numbers, continued from that of those before."""
    return zlib.crc32(np.asarray(numbers, dtype=np.int64).tobytes(), before)


class TextChecksum:
    """The checksum of the texts of one call's requests, by row."""

    def __init__(self) -> None:
        self._read: dict[int, tuple[int, int]] = {}  # row -> tokens read, their checksum

    def of(self, requests: Sequence[Request]) -> int:
        """That of the requests of a step: their rows, lengths and tokens."""
        found: list[int] = []
        for request in requests:
            read, checksum = self._read.get(request.row, (0, 0))
            checksum = of_integers(request.tokens[read:], checksum)
            self._read[request.row] = len(request.tokens), checksum
            found += (request.row, len(request.tokens), checksum)
        return of_integers(found)


def of_drafts(drafts: Sequence[Draft]) -> int:
    """That of trees: sizes, tokens, parents and queries."""
    checksum = 0
    for draft in drafts:
        checksum = of_integers([len(draft), *draft.tokens, *draft.parents, *draft.queries], checksum)
    return checksum
