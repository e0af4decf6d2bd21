"""A binary heap of what may be added to draft trees next: the largest value first, of equal ones the earliest.

It is one array of integers, beside one of values, so that machine code grows trees without allocating.
"""

from __future__ import annotations

from lade.base.compiled import compiled
from lade.memory.hashing import Array

# Of the heap: entries in it and entries that there ever were, then a binary heap of entries, then the entries.
HEAPED, ENTRIES, ROOM, ORDER = range(4)
TREE, NODE, TOKEN, ORIGIN = range(4)  # of an entry: its tree, its node or parent, its token, its stage
WIDTH_OF_ENTRY = 4


@compiled
def place_of(heap: Array, entry: int) -> int:
    """Where an entry begins."""
    return ORDER + heap[ROOM] + entry * WIDTH_OF_ENTRY


@compiled
def push(heap: Array, values: Array, value: float, tree: int, node: int, token: int, stage: int) -> None:
    entry, place = heap[ENTRIES], heap[HEAPED]
    heap[ENTRIES], heap[HEAPED] = entry + 1, place + 1
    values[entry] = value
    at = place_of(heap, entry)
    heap[at + TREE], heap[at + NODE], heap[at + TOKEN], heap[at + ORIGIN] = tree, node, token, stage
    while place > 0 and values[heap[ORDER + (place - 1) // 2]] < value:
        heap[ORDER + place] = heap[ORDER + (place - 1) // 2]
        place = (place - 1) // 2
    heap[ORDER + place] = entry


@compiled
def pop(heap: Array, values: Array) -> int:
    """Take the first entry out of the heap."""
    size = heap[HEAPED] - 1
    heap[HEAPED] = size
    first, moved, place = heap[ORDER], heap[ORDER + size], 0
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and before(values, heap[ORDER + child + 1], heap[ORDER + child]):
            child += 1
        if not before(values, heap[ORDER + child], moved):
            break
        heap[ORDER + place] = heap[ORDER + child]
        place = child
    heap[ORDER + place] = moved
    return first


@compiled
def before(values: Array, entry: int, other: int) -> bool:
    return values[entry] > values[other] or (values[entry] == values[other] and entry < other)
