"""Recycled predictions as arrays of the device: the model's newest top-k by the last 3, 2 and 1 tokens.

Token Recycling (arXiv 2408.08696) with longer contexts. Each slot has a table of its own, so no request reads what
another one taught. A context has one place, which the newest of those that fall there takes. S slots, M contexts, k
tokens of a prediction.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lade.memory.context import NOTHING
from lade.memory.predictions import TOP

LONGEST = 3  # tokens of a context
BITS = 21  # of a token in a key: three of them and no sign are 63
PLACES = 1 << 13  # of one length in one slot
FACTOR = -0x61C8864680B583EB  # 2^64 over the golden ratio, odd, as int64
SHIFT = 40  # leaves the bits of a product that depend on all of a key
FOLLOWED = 0.6  # probability of a token that followed a context in a prompt, whose predictions nobody has computed


def keys_of(contexts: torch.Tensor) -> torch.Tensor:
    """[M, LONGEST] of [M, LONGEST] last tokens, `NOTHING` before a text: column i holds i + 1 tokens, exactly."""
    first, second, third = (contexts & ((1 << BITS) - 1)).unbind(1)
    pair = second << BITS | third
    return torch.stack([third, pair, first << 2 * BITS | pair], dim=1)


class Recall:
    """The tables of all slots, and a place behind them for what is not kept.

    Args:
        count: slots, S.
        vocabulary: token ids are below it.

    Raises:
        ValueError: the vocabulary has more ids than keys can hold.
    """

    def __init__(self, count: int, vocabulary: int, device: torch.device) -> None:
        if vocabulary >= 1 << BITS:
            raise ValueError(f"vocabulary must be below {1 << BITS}, got {vocabulary}")
        self._nowhere = count * LONGEST * PLACES
        self._keys = torch.full((self._nowhere + 1,), -1, dtype=torch.long, device=device)
        self._tokens = torch.zeros(self._nowhere + 1, TOP, dtype=torch.int32, device=device)
        self._masses = torch.zeros(self._nowhere + 1, TOP, device=device)
        self._written = torch.zeros_like(self._keys)  # when each place was written last
        self._time = torch.ones(1, dtype=torch.long, device=device)
        self._lengths = torch.arange(LONGEST, device=device)
        self.device = device

    def find(self, slots: torch.Tensor, contexts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[M, LONGEST, k] tokens and probabilities after [M, LONGEST] contexts in [M] slots, by length; 0 where a
        length is not known."""
        keys = keys_of(contexts)
        places = self._places(slots, keys)
        known = self._keys[places] == keys
        return self._tokens[places].long(), self._masses[places] * known[:, :, None]

    def learn(
        self,
        slots: torch.Tensor,
        contexts: torch.Tensor,
        tokens: torch.Tensor,
        masses: torch.Tensor,
        kept: torch.Tensor,
    ) -> None:
        """Store predictions, of several in one place that of the last one.

        Args:
            slots: [M]
            contexts: [M, LONGEST]
            tokens, masses: [M, k], likeliest first.
            kept: [M] bool, which are stored at all.
        """
        keys = keys_of(contexts)
        places = torch.where(kept[:, None], self._places(slots, keys), self._nowhere)
        times = (self._time + torch.arange(len(keys), device=keys.device))[:, None].expand_as(places)
        self._written.scatter_reduce_(0, places.flatten(), times.flatten(), "amax")
        newest = self._written[places] == times  # the same on every run: two writes in one place have no order
        goals = torch.where(newest, places, self._nowhere).flatten()
        self._keys.index_copy_(0, goals, keys.flatten())
        for own, new in ((self._tokens, tokens.int()), (self._masses, masses.float())):
            spread = new.new_zeros(len(new), LONGEST, TOP)
            spread[:, :, : new.shape[1]] = new[:, None]
            own.index_copy_(0, goals, spread.flatten(0, 1))
        self._keys[self._nowhere :].fill_(-1)
        self._time += len(keys)

    def begin(self, slot: int, words: Sequence[int]) -> None:
        """Forget a slot's table, and store what followed each context in a text; between two steps."""
        own = slice(slot * LONGEST * PLACES, (slot + 1) * LONGEST * PLACES)
        self._keys[own] = -1
        if len(words) < 2:
            return
        text = torch.tensor(words, device=self.device)
        before = torch.nn.functional.pad(text[:-1], (LONGEST - 1, 0), value=NOTHING)
        followers = text[1:, None]
        everywhere = torch.full_like(text[1:], slot)
        masses = torch.full(followers.shape, FOLLOWED, device=text.device)
        self.learn(everywhere, before.unfold(0, LONGEST, 1), followers, masses, everywhere >= 0)

    def _places(self, slots: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """[M, LONGEST]"""
        inside = keys * FACTOR >> SHIFT & (PLACES - 1)
        return (slots[:, None] * LONGEST + self._lengths) * PLACES + inside
