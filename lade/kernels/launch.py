"""Launches of the kernels: sizes, strides, and memory for parts. Tensors in, tensors out; knows no model."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

from lade.base.powers import power_of_two
from lade.kernels.blocks import MERGED_ALONE, PACKED, Blocks, blocks, is_short, merged_lines, padded, smallest, splits
from lade.kernels.chain import chained
from lade.kernels.machine import processors
from lade.kernels.rows import Rows, Rules

FULL, WINDOW, CHUNK = 0, 1, 2  # what a kernel's LIMIT says


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    rows: Rows,
    rules: Rules,
    *,
    parts: int | None = None,
    sizes: Blocks | None = None,
) -> torch.Tensor:
    """[T, heads, E] attention of token trees over their rows' keys; undefined for queries of no row.

    Args:
        query: [heads, T, D], heads = H * G; heads h * G to (h + 1) * G - 1 look at keys of head h.
        key, value: [H, K, D] and [H, K, E], of the queries' type.
        rows: disjoint, on the same device.
        parts: into how many the keys are split; `None`: as `splits` says.
        sizes: of a program; `None`: as `blocks` says.
    """
    query, key, value = (_dense(states) for states in (query, key, value))
    (heads, tokens, size), (shared, _, value_size) = query.shape, value.shape
    group = heads // shared
    block = sizes or _blocks(query, max(size, value_size), shared, rows)
    grid, per_row = _grid(rows, shared, group, block)
    if parts is None:
        parts = splits(grid[0] * grid[1], rows.most_keys, block, processors(query.device))
    kernels = _kernels()
    out = query.new_empty(tokens, heads, value_size)
    into = out if parts == 1 else query.new_empty(parts, *out.shape, dtype=torch.float32)
    weights = into if parts == 1 else query.new_empty(parts, tokens, heads, 2, dtype=torch.float32)
    inner, factor = factors(rules)
    kernels.attend[*grid, parts](
        *(query, key, value, into, weights, query if rules.sinks is None else rules.sinks, rows.table, rows.integers),
        *(tokens, heads, group, per_row, parts),
        *(stride for states in (query, key, value) for stride in states.stride()[:2]),
        *(inner, factor, rules.window or rules.chunk or 0),
        **constants(size, value_size, block, rules, parts, kernels.interpreted),
        num_warps=block.warps,
        **chained(query.device),
    )
    if parts > 1:
        lines, power, wide = tokens * heads, power_of_two(parts), padded(value_size)
        together = merged_lines(lines, power * wide, processors(query.device))
        warps = 1 if power * wide <= MERGED_ALONE else 4
        kernels.merge[-(-lines // together),](
            into, weights, out, lines, parts, value_size, wide, power, together, num_warps=warps, **chained(out.device)
        )
    return out


def _blocks(query: torch.Tensor, size: int, shared: int, rows: Rows) -> Blocks:
    """Of a launch for [H * G, T, D] queries."""
    group = query.shape[0] // shared
    least = smallest(query.dtype, size)
    (along, across), _ = _grid(rows, shared, group, least)
    if is_short(along * across, rows.most_keys, least, processors(query.device)):
        return least
    return blocks(query.dtype, size, group, rows.most_nodes)


def _grid(rows: Rows, shared: int, group: int, block: Blocks) -> tuple[tuple[int, int], int]:
    """Programs along the rows and across the heads, and how many of them a row has."""
    packed = min(group, PACKED)
    per_row = -(-rows.most_nodes // (block.rows // packed))
    return (rows.table.shape[0] * per_row, shared * -(-group // packed)), per_row


def constants(
    size: int, value_size: int, block: Blocks, rules: Rules, parts: int, interpreted: bool = False
) -> dict[str, int | bool]:
    """What the kernel is compiled for."""
    limit = FULL if rules.window is None else WINDOW
    return {
        "D": size,
        "E": value_size,
        "DP": padded(size),
        "EP": padded(value_size),
        "BM": block.rows,
        "BK": block.keys,
        "LIMIT": limit if rules.chunk is None else CHUNK,
        "CAPPED": rules.cap is not None,
        "SINKS": rules.sinks is not None,
        "PARTIAL": parts > 1,
        "WIDEN": interpreted,
        "PACKED": PACKED,
        "STAGES": block.stages,
    }


def factors(rules: Rules) -> tuple[float, float]:
    """What products are multiplied with in a hyperbolic tangent, if there is one, and after it, in units of log2."""
    if rules.cap is None:
        return 1.0, rules.scale / math.log(2)
    return rules.scale / rules.cap, rules.cap / math.log(2)


def _dense(states: torch.Tensor) -> torch.Tensor:
    """With the elements of a head side by side."""
    return states if states.stride(-1) == 1 else states.contiguous()


@functools.lru_cache(maxsize=1)
def _kernels() -> Any:
    from lade.kernels import kernel

    return kernel
