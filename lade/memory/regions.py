"""One array of integers for many tables that grow: a header, then regions whose places stand in the header."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lade.base.compiled import Compiled
from lade.memory.hashing import index_rows, slots_for

SPARE = 4  # an array that grows has room for one part in 4 more than its regions


class Regions:
    """The array.

    A region that grows moves to the end. Where there is no room, all regions move together into another array.

    Args:
        header: numbers before the first region.
        room: numbers of regions that there is room for at first.

    Attributes:
        ints: int32; another array after a region has grown.
    """

    def __init__(self, header: int, room: int = 0) -> None:
        self.ints = np.zeros(header + room, np.int32)
        self._header = self._used = header
        self._sizes: dict[int, int] = {}  # by field

    def place(self, field: int, size: int, held: int = 0) -> None:
        """Give a region of this size to a field of the header, with the first numbers of its region before.

        Args:
            held: how many of them it keeps.
        """
        old, self._sizes[field] = self.ints, size
        if self._used + size <= len(old):
            self._move(old, field, held)
            return
        regions = sum(self._sizes.values())
        self.ints = np.zeros(self._header + regions + regions // SPARE, np.int32)
        self.ints[: self._header] = old[: self._header]
        self._used = self._header
        for each, length in self._sizes.items():
            self._move(old, each, held if each == field else length)

    def _move(self, old: np.ndarray, field: int, held: int) -> None:
        """Let the region of a field begin behind the others, with its first numbers from an array."""
        begin, before = self._used, int(old[field])
        self.ints[begin : begin + held] = old[before : before + held]
        self.ints[field], self._used = begin, begin + self._sizes[field]


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
