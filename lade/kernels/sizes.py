"""Sizes of a program of `lade.kernels.multiply`, for each number of tokens and lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

FEW, MOST = 16, 64  # tokens that a program takes; fewer are padded
TILE = 64  # lines
NUMBER = 2  # bytes
TOGETHER = 2  # programs of few tokens on a multiprocessor, into which K is split
MOST_SPLITS = 4
FEWEST_NUMBERS = 256  # of a part of K
APART = 16  # numbers; weights of a launch lie a multiple of so many from each other
WARPS = 4
AHEAD = 256  # numbers of a line that are asked for before the kernel before it has ended


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of a program.

    Attributes:
        lines: of a weight.
        numbers: of a line at a time.
        stages: blocks on their way.
        swap: lines of weights are the rows of the matrix product: of 64 the units of sm_90 take all at once.
        split: into how many parts K is split.
    """

    lines: int
    numbers: int
    stages: int
    swap: bool = False
    split: int = 1

    def shared(self, tokens: int, weights: int = 1) -> int:
        """The most bytes of blocks on their way, of so many weights at once."""
        return NUMBER * self.stages * (program_tokens(tokens) + weights * self.lines) * self.numbers


# The fastest of some 20 on an H100 at the sizes of a 7B shape; devices with less memory take later ones.
OF_FEW = Sizes(TILE, 256, 3, swap=True), Sizes(TILE, 128, 4, swap=True), Sizes(32, 128, 4)
OF_MANY = Sizes(TILE, 128, 4), Sizes(32, 128, 4), Sizes(32, 64, 3)
NARROW = Sizes(32, 256, 4), Sizes(32, 128, 4), Sizes(32, 64, 3)  # where tiles would leave multiprocessors idle
GATED = Sizes(32, 128, 4), Sizes(32, 64, 4), Sizes(32, 64, 3)


def sizes_of(tokens: int, lines: int, size: int, processors: int, shared: int, pair: bool = False) -> Sizes:
    """Of a program for so many tokens and lines, or pairs of lines, of `size` numbers.

    Args:
        shared: bytes that it may need.
    """
    if pair:
        return _fitting(GATED, tokens, shared, 2)
    if program_tokens(tokens) == MOST:
        return _fitting(OF_MANY if lines >= TILE * processors else NARROW, tokens, shared)
    parts = min(TOGETHER * processors // -(-lines // TILE), MOST_SPLITS, size // FEWEST_NUMBERS)
    if parts < 2:
        return _fitting(OF_FEW, tokens, shared)
    return replace(_fitting(OF_FEW[1:], tokens, shared), split=1 << (parts.bit_length() - 1))


def program_tokens(tokens: int) -> int:
    """Tokens of a program that takes so many."""
    return FEW if tokens <= FEW else MOST


def _fitting(choices: Sequence[Sizes], tokens: int, shared: int, weights: int = 1) -> Sizes:
    return next((sizes for sizes in choices if sizes.shared(tokens, weights) <= shared), choices[-1])
