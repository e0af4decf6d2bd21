"""What a forward needs on the device: token ids, positions, and what nodes see of each other, sent in one transfer.

n rows, T nodes of a row to compute, C nodes of its tree up to the last of them, M queried nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from lade.target.cache import TreeCache
from lade.target.masks import Sight
from lade.target.pieces import Piece, visibility
from lade.target.upload import Part, Upload


@dataclass(frozen=True, slots=True)
class Transferred:
    """Integers of a forward, on the device.

    Attributes:
        ids, positions: [sum T]
        asked: [M], as it was given; `None` if it was empty.
        indexed: as it was given; `None` if it was empty.
        sights: per row.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    asked: torch.Tensor | None
    indexed: torch.Tensor | None
    sights: list[Sight]


def transfer(
    cache: TreeCache,
    slots: Sequence[int],
    roots: Sequence[int],
    pieces: Sequence[Piece],
    asked: Sequence[int],
    indexed: Sequence[int],
    device: torch.device,
) -> Transferred:
    """Send the pieces of a forward to the device, and do there what is queued in the prepared cache.

    Args:
        roots: position of each row's root.
        asked: nodes whose logits are wanted, as the model is asked for them.
        indexed: `TreeCache.indexed`, if the model needs it.
    """
    upload = Upload()
    ids = upload.add([token for piece in pieces for token in piece.tokens])
    places = upload.add([root + depth for root, piece in zip(roots, pieces, strict=True) for depth in piece.own_depths])
    chosen, behind = upload.add(asked), upload.add(indexed)
    trees = [None if piece.is_chain else _added(upload, piece) for piece in pieces]
    cache.send(upload)
    upload.send(device)
    cache.settle()
    sights = [_sight(slot, piece, tree, device) for slot, piece, tree in zip(slots, pieces, trees, strict=True)]
    return Transferred(
        ids.there, places.there, chosen.there if asked else None, behind.there if indexed else None, sights
    )


def _added(upload: Upload, piece: Piece) -> tuple[Part, Part]:
    """Depths, and words of ancestors."""
    return upload.add(piece.depths), upload.add(piece.ancestors().flatten().tolist())


def _sight(slot: int, piece: Piece, tree: tuple[Part, Part] | None, device: torch.device) -> Sight:
    nodes = len(piece.tokens)
    if tree is None:
        return Sight(slot, _chain(nodes, piece.first, piece.columns, device), None, piece.columns - 1, piece.first)
    depths, words = tree
    seen = visibility(words.there.view(nodes, -1), piece.columns)
    return Sight(slot, seen, depths, max(piece.depths), piece.first)


@lru_cache(maxsize=64)
def _chain(nodes: int, first: int, columns: int, device: torch.device) -> torch.Tensor:
    """[T, C] bool: each node sees those before it."""
    return torch.ones(nodes, columns, dtype=torch.bool, device=device).tril(first)
