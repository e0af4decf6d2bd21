"""Drafts that are the same on all ranks: rank 0 makes them and sends them to the others in one broadcast a step.

Sizes of drafts follow measured times, which differ between ranks: so one rank chooses. The drafter of the others does
nothing else; drafts that a model makes are made on every rank, and compared.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lade.core.drafter import Drafter
from lade.core.request import Request
from lade.core.tree import Draft
from lade.distributed import packing
from lade.distributed.checksum import TextChecksum, of_drafts
from lade.distributed.errors import RankError
from lade.distributed.group import Group
from lade.distributed.wrapped import Wrapped


class LedDrafter(Wrapped):
    """Takes the drafts of rank 0.

    Args:
        inner: makes them on rank 0; `Nothing` on others.
        rows: the most requests of a step.
        nodes: the most nodes of a draft.
    """

    def __init__(self, group: Group, inner: Drafter, rows: int, nodes: int) -> None:
        super().__init__(inner)
        self.group, self._size, self._texts = group, packing.size(rows, nodes), TextChecksum()

    def draft(self, requests: Sequence[Request], depths: Sequence[int]) -> list[Draft]:
        own, checksum = self.inner.draft(requests, depths), self._texts.of(requests)
        found, theirs = packing.unpack(self.group.broadcast(packing.pack(own, checksum, self._size)))
        if theirs != checksum or len(found) != len(requests):
            raise RankError(f"rank {self.group.rank} disagrees with rank 0: their texts differ")
        return own or found


class ComparedDrafter(Wrapped):
    """Makes the drafts on every rank, as where the target drafts for itself, and compares them."""

    def __init__(self, group: Group, inner: Drafter) -> None:
        super().__init__(inner)
        self.group, self._texts = group, TextChecksum()

    def draft(self, requests: Sequence[Request], depths: Sequence[int]) -> list[Draft]:
        drafts = self.inner.draft(requests, depths)
        compare(self.group, [self._texts.of(requests), of_drafts(drafts)])
        return drafts


def compare(group: Group, checksums: Sequence[int]) -> None:
    """RankError where a rank has other checksums than rank 0."""
    found = group.gather(torch.tensor(checksums))
    check_equal(found)


def check_equal(checksums: torch.Tensor) -> None:
    """RankError naming the ranks whose line of [N, ...] checksums is another than that of rank 0."""
    other = [rank for rank in range(len(checksums)) if not torch.equal(checksums[rank], checksums[0])]
    if other:
        raise RankError(f"ranks {', '.join(map(str, other))} disagree with rank 0: their texts or drafts differ")
