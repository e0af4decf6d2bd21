"""The drafts of a step as integers of a fixed number, as rank 0 sends them. Knows no process and no model.

    [checksum of the texts, rows, nodes of each row, (token, place) of each node]

A place holds a node's parent + 1 in its lowest 13 bits, whether its logits are wanted, and the number of its source.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lade.core.tree import Draft
from lade.memory.stages import NAMES

PARENT = 13  # bits: trees have at most 4,096 nodes
OTHER = "draft"  # the source of nodes whose own has no number
SOURCES = (OTHER, "root", "window", "ngram", "forced", *NAMES)
NUMBERS = {name: number for number, name in reversed(list(enumerate(SOURCES)))}


def size(rows: int, nodes: int) -> int:
    """Integers that hold the drafts of as many rows, of at most `nodes` nodes each."""
    return 2 + rows + 2 * rows * nodes


def pack(drafts: Sequence[Draft], checksum: int, total: int) -> torch.Tensor:
    """[total] int32.

    Args:
        checksum: of the texts, 32 bits.
    """
    numbers = [checksum - (1 << 31), len(drafts), *map(len, drafts)]
    for draft in drafts:
        asked = set(draft.queries)
        for node, (token, parent, source) in enumerate(zip(draft.tokens, draft.parents, draft.sources, strict=True)):
            number = NUMBERS.get(source, 0)
            numbers += (token, parent + 1 | (node in asked) << PARENT | number << PARENT + 1)
    buffer = torch.zeros(total, dtype=torch.int32)
    buffer[: len(numbers)] = torch.tensor(numbers, dtype=torch.int32)
    return buffer


def unpack(buffer: torch.Tensor) -> tuple[list[Draft], int]:
    """The drafts and the checksum that `pack` was given."""
    numbers = buffer.tolist()
    checksum, rows = numbers[0] + (1 << 31), numbers[1]
    lengths, at = numbers[2 : 2 + rows], 2 + rows
    drafts = []
    for length in lengths:
        drafts.append(_draft(numbers[at : at + 2 * length : 2], numbers[at + 1 : at + 2 * length : 2]))
        at += 2 * length
    return drafts, checksum


def _draft(tokens: list[int], places: list[int]) -> Draft:
    parents = [(place & (1 << PARENT) - 1) - 1 for place in places]
    depths = [0]
    for parent in parents[1:]:
        depths.append(depths[parent] + 1)
    queries = [node for node, place in enumerate(places) if place >> PARENT & 1]
    return Draft(tokens, parents, depths, queries, [SOURCES[place >> PARENT + 1] for place in places])
