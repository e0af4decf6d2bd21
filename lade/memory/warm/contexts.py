"""What a model expects after the last few tokens, from texts of its own: the longer and the oftener seen, the surer.

Its predictions at all places that end in the same tokens are averaged. n places count n / (n + DOUBT), what one token
less of context expects counts the rest, down to the prediction after the last token alone: Witten-Bell smoothing (Chen
and Goodman, cmp-lg/9606011) of predictions in place of counts. Knows no model and no file.

P places in texts, G endings of one length, k likeliest tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from lade.memory.recycle import CONTEXT, NOTHING
from lade.memory.warm.texts import WarmTexts

DOUBT = 2.5
TOKEN = 32  # bits of one

Predictions = tuple[np.ndarray, np.ndarray]  # [*, k] tokens and their probabilities, most likely first


@dataclass(frozen=True, slots=True, eq=False)
class WarmContexts:
    """Expectations after n endings.

    Attributes:
        endings: [n, CONTEXT] int32, the last tokens; NOTHING stands before those of fewer. No two are the same.
        tokens: [n, k] int32, most likely first.
        probabilities: [n, k] float32, descending; 0 where fewer tokens are known.
    """

    endings: torch.Tensor
    tokens: torch.Tensor
    probabilities: torch.Tensor


def smoothed(texts: WarmTexts, tokens: torch.Tensor, probabilities: torch.Tensor) -> WarmContexts:
    """The expectations after all endings of up to CONTEXT tokens that the texts have.

    Args:
        tokens, probabilities: [V, k] predictions after every vocabulary entry alone.
    """
    columns = _before(texts.written.numpy())
    order = np.lexsort(columns[::-1])
    columns = [column[order] for column in columns]
    said: Predictions = texts.tokens.flatten(0, 1).numpy()[order], texts.probabilities.flatten(0, 1).numpy()[order]
    known: Predictions = tokens.numpy(), probabilities.numpy()
    shorter = columns[0]  # which of what is known each place goes on from
    levels = []
    for length in range(1, CONTEXT + 1):
        begins = np.any([np.diff(column, prepend=NOTHING - 1) != 0 for column in columns[:length]], axis=0)
        group, firsts = begins.cumsum() - 1, np.flatnonzero(begins)
        known = _mixed(group, said, (known[0][shorter[firsts]], known[1][shorter[firsts]]))
        shorter = group
        endings = np.full((len(firsts), CONTEXT), NOTHING, dtype=np.int32)
        endings[:, CONTEXT - length :] = np.stack([column[firsts] for column in columns[length - 1 :: -1]], axis=1)
        whole = (endings[:, CONTEXT - length :] != NOTHING).all(axis=1)  # else it reaches back before the text
        levels.append((endings[whole], known[0][whole], known[1][whole]))
    return WarmContexts(*(torch.from_numpy(np.concatenate(parts)) for parts in zip(*levels, strict=True)))


def _before(texts: np.ndarray) -> list[np.ndarray]:
    """For every place the token there, the one before it, and so on: CONTEXT times [P]."""
    columns = [np.full_like(texts, NOTHING) for _ in range(CONTEXT)]
    for back, tokens in enumerate(columns):
        tokens[:, back:] = texts[:, : max(texts.shape[1] - back, 0)]
    return [tokens.ravel() for tokens in columns]


def _mixed(group: np.ndarray, said: Predictions, shorter: Predictions) -> Predictions:
    """[G, k] expectations after endings.

    Args:
        group: [P] the ending of each place, ascending.
        said: [P, k] predictions there.
        shorter: [G, k] what one token less expects.
    """
    top = said[0].shape[1]
    places = np.bincount(group)
    doubt = DOUBT / (places + DOUBT)
    owners = np.repeat(np.concatenate([group, np.arange(len(places))]), top)
    tokens = np.concatenate([said[0], shorter[0]]).ravel()
    masses = np.concatenate([said[1] / (places + DOUBT)[group, None], shorter[1] * doubt[:, None]]).ravel()
    pairs, where = np.unique(owners.astype(np.int64) << TOKEN | tokens, return_inverse=True)
    sums = np.bincount(where.ravel(), masses)
    owners = pairs >> TOKEN
    ranked = np.lexsort((-sums, owners))  # owners stay where they are: they ascend already
    ranks = np.arange(len(owners)) - np.searchsorted(owners, np.arange(len(places)))[owners]
    best = ranks < top
    mixed = np.zeros((len(places), top), np.int32), np.zeros((len(places), top), np.float32)
    mixed[0][owners[best], ranks[best]] = pairs[ranked][best] & ((1 << TOKEN) - 1)
    mixed[1][owners[best], ranks[best]] = np.minimum(sums[ranked][best], 1.0)
    return mixed
