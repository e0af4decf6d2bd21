"""Where slots lie on an axis of tokens: one slab each, an offset and a capacity. Knows no tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

Move = tuple[int, int, int]  # from, to, tokens


class Slabs:
    """Regions of an axis that do not overlap.

    Attributes:
        offsets, capacities: by slot, in tokens.
        total: length of the axis.
    """

    def __init__(self) -> None:
        self.offsets: dict[int, int] = {}
        self.capacities: dict[int, int] = {}
        self.total = 0

    def in_order(self) -> list[int]:
        """The slots by offset."""
        return sorted(self.offsets, key=self.offsets.__getitem__)

    def gap(self, tokens: int) -> int | None:
        """The first place with this many free tokens."""
        return next((begin for begin, end in self._gaps() if end - begin >= tokens), None)

    def behind(self, slot: int) -> int:
        """Free tokens directly behind a slot."""
        place = self.offsets[slot] + self.capacities[slot]
        return next((end - begin for begin, end in self._gaps() if begin == place), 0)

    def _gaps(self) -> Iterator[tuple[int, int]]:
        end = 0
        for slot in self.in_order():
            if self.offsets[slot] > end:
                yield end, self.offsets[slot]
            end = self.offsets[slot] + self.capacities[slot]
        if end < self.total:
            yield end, self.total

    def place(self, slot: int, offset: int, capacity: int) -> None:
        self.offsets[slot], self.capacities[slot] = offset, capacity

    def remove(self, slot: int) -> None:
        """A slot that has none stays without."""
        self.offsets.pop(slot, None)
        self.capacities.pop(slot, None)

    def pack(self, capacities: Mapping[int, int]) -> list[Move]:
        """Lay all slots behind one another in their order, new ones last; some with other capacities than now."""
        old_offsets, old_capacities = self.offsets, self.capacities
        order = [*self.in_order(), *(slot for slot in capacities if slot not in old_offsets)]
        self.offsets, self.capacities, self.total = {}, {}, 0
        for slot in order:
            capacity = capacities.get(slot) or old_capacities[slot]
            self.place(slot, self.total, capacity)
            self.total += capacity
        return [(offset, self.offsets[slot], old_capacities[slot]) for slot, offset in old_offsets.items()]
