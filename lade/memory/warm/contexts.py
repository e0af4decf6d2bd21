"""A model's predictions after its last few tokens, from texts that it wrote itself.

Predictions at all places with the same last tokens are averaged, and smoothed by those with one token less of context,
down to the prediction after the last token alone: the average over n places weighs n / (n + PRIOR_COUNT). This is
Witten-Bell smoothing (Chen and Goodman, cmp-lg/9606011) of predictions in place of counts. Knows no model and no file.

P places in texts, G endings of one length, k most likely tokens.
"""

from __future__ import annotations

import numpy as np
import torch

from lade.memory.context import CONTEXT, NOTHING
from lade.memory.warm.texts import WarmTexts
from lade.memory.warmtable import WarmContexts, no_contexts

PRIOR_COUNT = 2.5  # places that the shorter context counts for
TOKEN_BITS = 32

Predictions = tuple[np.ndarray, np.ndarray]  # [*, k] tokens and their probabilities, most likely first


def smoothed(
    texts: WarmTexts, tokens: torch.Tensor, probabilities: torch.Tensor, known: WarmContexts | None = None
) -> WarmContexts:
    """Predictions after all endings of up to CONTEXT tokens in the texts.

    Args:
        tokens, probabilities: [V, k] predictions after every vocabulary entry alone; probability 0: not known.
        known: predictions from other texts. They smooth those of the same ending, in place of the shorter ending's,
            and stand beside those of other endings.
    """
    known = no_contexts(tokens.shape[1]) if known is None else known
    places = {tuple(ending): place for place, ending in enumerate(known.endings.tolist())}
    before = known.tokens.numpy(), known.probabilities.numpy()
    columns = _before(texts.written.numpy())
    order = np.lexsort(columns[::-1])
    order = order[texts.counted.flatten().numpy()[order]]
    columns = [column[order] for column in columns]
    seen: Predictions = texts.tokens.flatten(0, 1).numpy()[order], texts.probabilities.flatten(0, 1).numpy()[order]
    shorter: Predictions = tokens.numpy(), probabilities.numpy()
    parents = columns[0]  # the row of `shorter` for each place
    levels = []
    for length in range(1, CONTEXT + 1):
        begins = np.any([np.diff(column, prepend=NOTHING - 1) != 0 for column in columns[:length]], axis=0)
        group, firsts = begins.cumsum() - 1, np.flatnonzero(begins)
        endings = np.full((len(firsts), CONTEXT), NOTHING, dtype=np.int32)
        endings[:, CONTEXT - length :] = np.stack([column[firsts] for column in columns[length - 1 :: -1]], axis=1)
        prior = _prior((shorter[0][parents[firsts]], shorter[1][parents[firsts]]), endings, places, before)
        shorter, parents = _interpolated(group, seen, prior), group
        whole = (endings[:, CONTEXT - length :] != NOTHING).all(axis=1)  # others begin before the text
        levels.append((endings[whole], shorter[0][whole], shorter[1][whole]))
    left = np.array(sorted(places.values()), dtype=np.int64)
    levels.append((known.endings.numpy()[left], before[0][left], before[1][left]))
    return WarmContexts(*(torch.from_numpy(np.concatenate(parts)) for parts in zip(*levels, strict=True)))


def _prior(
    shorter: Predictions, endings: np.ndarray, places: dict[tuple[int, ...], int], known: Predictions
) -> Predictions:
    """[G, k] what predictions after endings are smoothed with: `known` ones where there are any, else `shorter` ones.

    Args:
        places: ending -> its row in `known`; those of `endings` are taken out.
    """
    if not places:
        return shorter
    found = [
        (group, row)
        for group, ending in enumerate(endings.tolist())
        if (row := places.pop(tuple(ending), None)) is not None
    ]
    groups, rows = np.array(found, dtype=np.int64).reshape(-1, 2).T
    for part, other in zip(shorter, known, strict=True):
        part[groups] = other[rows]
    return shorter


def _before(texts: np.ndarray) -> list[np.ndarray]:
    """CONTEXT arrays [P]: for every place the token there, the one before it, and so on."""
    columns = [np.full_like(texts, NOTHING) for _ in range(CONTEXT)]
    for back, tokens in enumerate(columns):
        tokens[:, back:] = texts[:, : max(texts.shape[1] - back, 0)]
    return [tokens.ravel() for tokens in columns]


def _interpolated(group: np.ndarray, seen: Predictions, shorter: Predictions) -> Predictions:
    """[G, k] predictions after endings.

    Args:
        group: [P] the ending of each place, ascending.
        seen: [P, k] predictions there.
        shorter: [G, k] predictions with one token less of context. Probabilities that are NaN count nothing.
    """
    top, places = seen[0].shape[1], np.bincount(group)
    weights = 1 / (places + PRIOR_COUNT)
    owners = np.concatenate([group, np.arange(len(places))])
    keys = (owners[:, None] << TOKEN_BITS | np.concatenate([seen[0], shorter[0]])).ravel()
    shares = np.concatenate([seen[1] * weights[group, None], shorter[1] * PRIOR_COUNT * weights[:, None]]).ravel()
    order = keys.argsort(kind="stable")
    keys, shares = keys[order], np.nan_to_num(shares[order])
    firsts = np.flatnonzero(np.diff(keys, prepend=-1))
    keys, masses = keys[firsts], np.add.reduceat(shares, firsts).astype(np.float32)
    owners = keys >> TOKEN_BITS
    ranked = _descending(owners, masses)
    ranks = np.arange(len(owners)) - np.searchsorted(owners, np.arange(len(places)))[owners]
    best = ranks < top
    found = np.zeros((len(places), top), np.int32), np.zeros((len(places), top), np.float32)
    found[0][owners[best], ranks[best]] = keys[ranked][best] & ((1 << TOKEN_BITS) - 1)
    found[1][owners[best], ranks[best]] = np.minimum(masses[ranked][best], 1.0)
    return found


def _descending(owners: np.ndarray, masses: np.ndarray) -> np.ndarray:
    """The order by ascending owner and, within one, descending mass: as one integer, which is sorted faster than two.

    Floating-point numbers that are not negative ascend as their bits do.
    """
    return ((owners + 1 << TOKEN_BITS) - masses.view(np.int32)).argsort(kind="stable")
