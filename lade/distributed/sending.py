"""Keys and values of accepted tokens on their way between ranks: which are sent, and the buffer that holds them.

A rank that did not compute the end of an accepted path gets its keys and values from one that did. Knows no process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from lade.distributed.lagging import beginning
from lade.target.cache import TreeCache
from lade.target.model import HFTarget
from lade.target.store import LayerGroup


@dataclass(frozen=True, slots=True)
class Sent:
    """The last tokens of a slot, from one rank to all others."""

    slot: int
    tokens: int
    source: int


class Lags:
    """How many accepted tokens each rank lacks. All ranks know the same.

    Attributes:
        of: by slot, the number of every rank.
    """

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.of: dict[int, list[int]] = {}

    def open(self, slot: int) -> None:
        self.of[slot] = [0] * self.ranks

    def close(self, slot: int) -> None:
        del self.of[slot]

    def keep(self, slot: int, computed: Sequence[Sequence[int]], path: Sequence[int]) -> None:
        """A path was accepted, of which each rank computed some nodes, or none."""
        lags = self.of[slot]
        for rank, nodes in enumerate(computed):
            if nodes:
                lags[rank] = len(path) - beginning(path, nodes)
            else:
                lags[rank] += len(path)

    def caught_up(self, rank: int, least: int) -> None:
        """A rank has computed what it lacked in slots where it lacked at least so many tokens."""
        for lags in self.of.values():
            if lags[rank] >= least:
                lags[rank] = 0

    def sent(self, slots: Sequence[int], ranks: int) -> list[Sent]:
        """What the first `ranks` ranks lack in these slots, as far as one rank has it; from one rank if one has all."""
        found = [(slot, max(self.of[slot][:ranks]), self._sources(slot)) for slot in slots]
        found = [each for each in found if each[1] and each[2]]
        common = set(range(self.ranks)).intersection(*(sources for _, _, sources in found))
        return [Sent(slot, tokens, min(common or sources)) for slot, tokens, sources in found]

    def _sources(self, slot: int) -> set[int]:
        return {rank for rank, lag in enumerate(self.of[slot]) if not lag}

    def receive(self, sent: Sent) -> list[int]:
        """The ranks that take what was sent; they lack nothing in its slot from now on."""
        lags = self.of[sent.slot]
        taking = [rank for rank, lag in enumerate(lags) if 0 < lag <= sent.tokens]
        for rank in taking:
            lags[rank] = 0
        return taking


def packed(cache: TreeCache, sent: Sequence[Sent], rank: int) -> torch.Tensor:
    """[bytes] uint8 on the host: what this rank sends, zeros for all else."""
    cache.settle()
    parts: list[torch.Tensor] = []
    for each in sent:
        for group, buffer in _buffers(cache):
            part = buffer.new_zeros(buffer.shape[1], each.tokens, buffer.shape[3])
            if each.source == rank:
                stored = min(each.tokens, group.held(each.slot))  # a sliding layer may have fewer
                part[:, each.tokens - stored :] = group.tokens(buffer, each.slot, group.lengths[each.slot] - stored)
            parts.append(part.flatten().view(torch.uint8))
    return torch.cat([part.to(parts[0].device) for part in parts]).cpu()


def unpacked(target: HFTarget, sent: Sequence[Sent], buffer: torch.Tensor, lacking: Sequence[int]) -> None:
    """Append to each slot the tokens that it lacks, some of the last ones of those that were sent."""
    cache, first = target.cache, 0
    for each, tokens in zip(sent, lacking, strict=True):
        if tokens:
            cache.prepare([each.slot], [tokens], [0])
            cache.settle()
        for group, own in _buffers(cache):
            heads, size = own.shape[1], own.shape[3]
            end = first + heads * each.tokens * size * own.element_size()
            if tokens:
                part = buffer[first:end].clone().view(own.dtype).view(heads, each.tokens, size)
                place = group.slabs.offsets[each.slot] + group.held(each.slot)
                own[0, :, place : place + tokens] = part[:, each.tokens - tokens :].to(own.device)
            first = end
        if tokens:
            target.keep([each.slot], [range(tokens)])


def _buffers(cache: TreeCache) -> Iterator[tuple[LayerGroup, torch.Tensor]]:
    """The keys and values of every layer that has some."""
    for layer in cache.own_layers():
        if layer.keys is not None:
            yield layer.group, layer.keys
            yield layer.group, layer.values
