"""One array of integers for many tables that grow: a header, then regions whose places stand in the header."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lade.base.compiled import Compiled
from lade.memory.hashing import index_rows, slots_for


class Regions:
    """The array.

    A region that grows moves to the end; what it leaves behind is less than what all regions hold.

    Args:
        header: numbers before the first region.

    Attributes:
        ints: int32; another array after a region has grown.
    """

    def __init__(self, header: int) -> None:
        self.ints = np.zeros(header, np.int32)
        self._used = header

    def place(self, field: int, size: int, held: int = 0) -> None:
        """Give a region of this size to a field of the header, with the first numbers of its region before.

        Args:
            held: how many of them it keeps.
        """
        begin, end = self._used, self._used + size
        if end > len(self.ints):
            grown = np.zeros(max(end, 2 * len(self.ints)), np.int32)
            grown[: self._used] = self.ints[: self._used]
            self.ints = grown
        before = self.ints[field]
        self.ints[begin : begin + held] = self.ints[before : before + held]
        self.ints[field], self._used = begin, end


REINDEX = Compiled(index_rows)


class Table:
    """A table in an array of regions, and its index.

    Args:
        fields: of the header: the place of the rows, their number, the place of the index, its slots; the first two
            where there is no index.
        width: columns.
        pairs: whether the first two columns are the key; else the first four are.
    """

    def __init__(self, regions: Regions, fields: Sequence[int], width: int, pairs: bool = False) -> None:
        self._regions, self._fields, self._width, self._pairs = regions, fields, width, pairs
        self.room = 0

    def reserve(self, rows: int) -> bool:
        """Make room for so many rows in all. Returns whether it had to grow."""
        if rows <= self.room:
            return False
        regions, (place, count, *index) = self._regions, self._fields
        self.room = max(rows, 2 * self.room)
        regions.place(place, self.room * self._width, int(regions.ints[count]) * self._width)
        if index:
            wanted = slots_for(self.room)
            regions.place(index[0], wanted)
            regions.ints[index[1]] = wanted
            self.reindex()
        return True

    def reindex(self) -> None:
        """Make the index anew."""
        ints = self._regions.ints
        place, count, index, slots = (int(ints[field]) for field in self._fields)
        REINDEX(ints, index, slots, place, self._width, count, self._pairs)
