"""Changes of a flat buffer of keys or values between steps. H heads, D head size. Knows no slots and no model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from lade.target.slabs import Move

Change = Callable[[torch.Tensor], torch.Tensor]  # of a buffer [1, H, total, D]; returns it, or another in its place


def gathered(sources: torch.Tensor, goals: torch.Tensor, places: Sequence[int]) -> Change:
    """Tokens from `sources` to `goals`, one gather for all; with one run of goals it needs no index to write.

    Args:
        places: the goals, on the host.
    """
    first, count = places[0], len(places)
    whole = places[-1] - first == count - 1

    def change(buffer: torch.Tensor) -> torch.Tensor:
        kept = buffer.index_select(2, sources.to(buffer.device))
        if whole:
            buffer.narrow(2, first, count).copy_(kept)
        else:
            buffer.index_copy_(2, goals.to(buffer.device), kept)
        return buffer

    return change


def zeroed(begin: int, end: int) -> Change:
    def change(buffer: torch.Tensor) -> torch.Tensor:
        buffer[:, :, begin:end].zero_()
        return buffer

    return change


def copied(source: int, goal: int, tokens: int) -> Change:
    def change(buffer: torch.Tensor) -> torch.Tensor:
        buffer[:, :, goal : goal + tokens] = buffer[:, :, source : source + tokens].clone()
        return buffer

    return change


def exchanged(one: int, other: int, tokens: int) -> Change:
    def change(buffer: torch.Tensor) -> torch.Tensor:
        held = buffer[:, :, one : one + tokens].clone()
        buffer[:, :, one : one + tokens] = buffer[:, :, other : other + tokens]
        buffer[:, :, other : other + tokens] = held
        return buffer

    return change


def packed(total: int, moves: Sequence[Move]) -> Change:
    def change(buffer: torch.Tensor) -> torch.Tensor:
        packed = buffer.new_zeros(1, buffer.shape[1], total, buffer.shape[3])
        for source, goal, tokens in moves:
            packed[:, :, goal : goal + tokens] = buffer[:, :, source : source + tokens]
        return packed

    return change
