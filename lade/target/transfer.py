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
from lade.target.upload import Upload


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
    depths = [upload.add(piece.depths) for piece in pieces]
    words = [None if piece.is_chain else upload.add(piece.ancestors().flatten().tolist()) for piece in pieces]
    cache.send(upload)
    upload.send(device)
    cache.settle()
    sights = []
    for slot, piece, depth, part in zip(slots, pieces, depths, words, strict=True):
        seen = (
            _chain(len(piece.tokens), piece.first, piece.columns, device)
            if part is None
            else visibility(part.there.view(len(piece.tokens), -1), piece.columns)
        )
        sights.append(Sight(slot, seen, depth, max(piece.depths), piece.first))
    return Transferred(
        ids.there, places.there, chosen.there if asked else None, behind.there if indexed else None, sights
    )


@lru_cache(maxsize=64)
def _chain(nodes: int, first: int, columns: int, device: torch.device) -> torch.Tensor:
    """[T, C] bool: each node sees those before it."""
    return torch.ones(nodes, columns, dtype=torch.bool, device=device).tril(first)
