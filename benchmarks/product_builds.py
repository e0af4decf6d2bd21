"""Builds of the products for sm_90a without a device: every size of a program that a launch can choose."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import torch
from kernel_builds import LARGEST_SHARED, TYPES, program, resources

from lade.kernels.between import HALVES
from lade.kernels.multiply import multiply
from lade.kernels.sizes import AHEAD, FEW, GATED, MOST, MOST_SPLITS, NARROW, OF_FEW, OF_MANY, WARPS, Sizes

STATES = ("x", "weight", "out", "bias", "residual")
POINTERS = {"scratch": "*fp32", "counters": "*i32"}
ALIGNED = (*STATES, *POINTERS, "K")


def every() -> Iterator[tuple[torch.dtype, int, Sizes, bool, bool]]:
    """Type, tokens, sizes, whether of pairs of lines, and whether K is a whole number of blocks."""
    tables = (FEW, OF_FEW, False), (MOST, (*OF_MANY, *NARROW), False), (FEW, GATED, True), (MOST, GATED, True)
    for dtype in HALVES:
        for tokens, table, pair in tables:
            for sizes in dict.fromkeys(table):
                for split in (1, MOST_SPLITS) if tokens == FEW and not pair else (1,):
                    own = Sizes(**asdict(sizes) | {"split": split})
                    yield from ((dtype, tokens, own, pair, even) for even in (True, False))


def built(dtype: torch.dtype, tokens: int, sizes: Sizes, pair: bool, even: bool) -> dict[str, Any]:
    """Compile one program, with a bias and a residual, and read what it takes."""
    fixed = {
        "BT": tokens, "BN": sizes.lines, "BK": sizes.numbers, "SPLIT": sizes.split, "EVEN": even, "SWAP": sizes.swap,
        "PAIR": pair, "BIAS": True, "RESIDUAL": True, "STAGES": sizes.stages, "AHEAD": AHEAD, "CHAINED": True,
        "WIDEN": False,
    }  # fmt: skip
    types = dict.fromkeys(multiply.arg_names, "i32") | dict.fromkeys(STATES, f"*{TYPES[dtype]}") | POINTERS
    found = program(multiply, types, fixed, ALIGNED, num_warps=WARPS, launch_pdl=True)
    usage, shared = resources(found.asm["cubin"]), found.metadata.shared
    holds = usage["STACK"] == 0 and shared <= min(LARGEST_SHARED, sizes.shared(tokens, 1 + pair))
    return {"registers": usage["REG"], "stack": usage["STACK"], "shared": shared, "holds": holds}
