"""What a forward needs on the device: token ids, positions, and what nodes see of each other, sent in one transfer.

n rows, T nodes of a row to compute, C nodes of its tree up to the last of them, M queried nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import torch

from lade.target.cache import TreeCache
from lade.target.launches import Launch, launches
from lade.target.masks import MaskKind, Sight, TreeMasks
from lade.target.pieces import Piece, ancestors, visibility
from lade.target.upload import Part, Upload

# Where every piece is a chain: words of no trees, and what they say.
NO_WORDS, NOTHING_SEEN = np.zeros((0, 1), np.int64), torch.zeros(0, 0, dtype=torch.bool, device="cpu")


@dataclass(frozen=True, slots=True)
class Transferred:
    """Integers of a forward, on the device.

    Attributes:
        ids, positions: [sum T]
        asked: [M], as it was given; `None` if it was empty.
        indexed: as it was given; `None` if it was empty.
        sights: per row.
        launches: by mask kind, if the kernels were asked for.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    asked: torch.Tensor | None
    indexed: torch.Tensor | None
    sights: list[Sight]
    launches: Mapping[MaskKind, Launch] = field(default_factory=dict)


def transfer(
    cache: TreeCache,
    slots: Sequence[int],
    roots: Sequence[int],
    pieces: Sequence[Piece],
    asked: Sequence[int],
    indexed: Sequence[int],
    device: torch.device,
    launched: TreeMasks | None = None,
) -> Transferred:
    """Send the pieces of a forward to the device, and do there what is queued in the prepared cache.

    Args:
        roots: position of each row's root.
        asked: nodes whose logits are wanted, as the model is asked for them.
        indexed: `TreeCache.indexed`, if the model needs it.
        launched: what the rows see, where the kernels attend to them.
    """
    upload = Upload()
    ids = upload.add([token for piece in pieces for token in piece.tokens])
    places = upload.add([root + depth for root, piece in zip(roots, pieces, strict=True) for depth in piece.own_depths])
    chosen, behind = upload.add(asked), upload.add(indexed)
    trees = [piece for piece in pieces if not piece.is_chain]
    depths = [upload.add(piece.depths) for piece in trees]
    words = ancestors(trees) if trees else NO_WORDS
    here = device.type == "cpu"
    sent = upload.add(() if here else words.ravel().tolist())
    rows = {} if launched is None else launches(upload, launched, slots, pieces)
    cache.send(upload)
    upload.send(device)
    cache.settle()
    seen = visibility(torch.from_numpy(words) if here else sent.there.view(words.shape)) if trees else NOTHING_SEEN
    sights = _sights(slots, pieces, depths, seen, device)
    return Transferred(
        ids.there, places.there, chosen.there if asked else None, behind.there if indexed else None, sights, rows
    )


def _sights(
    slots: Sequence[int], pieces: Sequence[Piece], depths: Sequence[Part], seen: torch.Tensor, device: torch.device
) -> list[Sight]:
    """What nodes see.

    Args:
        depths: of each tree; chains have none.
        seen: of all trees (`visibility`).
    """
    begin, tree = 0, iter(depths)
    found: list[Sight] = []
    for slot, piece in zip(slots, pieces, strict=True):
        first, columns = piece.first, piece.columns
        if piece.is_chain:
            chain = _chain(len(piece.tokens), first, columns, device)
            found.append(Sight(slot, chain, None, columns - 1, first))
            continue
        visible = seen[begin + first : begin + first + len(piece.tokens), :columns]
        found.append(Sight(slot, visible, next(tree), max(piece.depths), first))
        begin += columns
    return found


@lru_cache(maxsize=64)
def _chain(nodes: int, first: int, columns: int, device: torch.device) -> torch.Tensor:
    """[T, C] bool: each node sees those before it."""
    return torch.ones(nodes, columns, dtype=torch.bool, device=device).tril(first)
