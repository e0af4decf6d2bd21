"""Operations between the products of a layer as Triton kernels, one for what is several in PyTorch.

Each rounds where PyTorch's own operations round, so that only a sum's order differs. Imported only where they run,
since it imports triton. N tokens, H heads of size D, M hidden units.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def rounded(x, like):
    """In float32, as it is after it was stored in the type of a pointer."""
    return x.to(like.dtype.element_ty).to(tl.float32)


@triton.jit
def silu(x, like):
    """x / (1 + exp(-x)) (arXiv 1702.03118), rounded to the type of a pointer."""
    return rounded(tl.div_rn(x, 1 + tl.exp(-x)), like)


@triton.jit
def follow(CHAINED: tl.constexpr):
    """Wait for the kernel before this one (`lade.kernels.chain`)."""
    if CHAINED:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def rms_norm(
    x, residual, sums, weight, out, epsilon,
    M: tl.constexpr, MP: tl.constexpr, RESIDUAL: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Grid: [lines]. Each line [M] over the root of its mean square, times weights; before that its sum with a residual
    is stored where RESIDUAL."""
    line = tl.program_id(0).to(tl.int64) * M
    m = tl.arange(0, MP)
    there = m < M
    factors = tl.load(weight + m, mask=there, other=0.0).to(tl.float32)
    follow(CHAINED)
    values = tl.load(x + line + m, mask=there, other=0.0).to(tl.float32)
    if RESIDUAL:
        values = rounded(values + tl.load(residual + line + m, mask=there, other=0.0).to(tl.float32), sums)
        tl.store(sums + line + m, values.to(sums.dtype.element_ty), mask=there)
    scale = 1 / tl.sqrt_rn(tl.sum(values * values, 0) / M + epsilon)
    found = rounded(values * scale, out) * factors
    tl.store(out + line + m, found.to(out.dtype.element_ty), mask=there)


@triton.jit
def _turned(
    x, out, x_head, x_token, out_head, out_token, heads, cos, sin,
    HP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """Rotate the two halves of all heads of one token."""
    token = tl.program_id(0).to(tl.int64)
    head, d = tl.arange(0, HP), tl.arange(0, DP)
    there = (head < heads)[:, None] & (d < D // 2)[None, :]
    at = x + token * x_token + head[:, None] * x_head + d[None, :]
    low = tl.load(at, mask=there, other=0.0).to(tl.float32)
    high = tl.load(at + D // 2, mask=there, other=0.0).to(tl.float32)
    angle = token * D + d
    half = d < D // 2
    cos_low = tl.load(cos + angle, mask=half, other=0.0).to(tl.float32)[None, :]
    cos_high = tl.load(cos + angle + D // 2, mask=half, other=0.0).to(tl.float32)[None, :]
    sin_low = tl.load(sin + angle, mask=half, other=0.0).to(tl.float32)[None, :]
    sin_high = tl.load(sin + angle + D // 2, mask=half, other=0.0).to(tl.float32)[None, :]
    goal = out + token * out_token + head[:, None] * out_head + d[None, :]
    first = rounded(low * cos_low, out) - rounded(high * sin_low, out)
    second = rounded(high * cos_high, out) + rounded(low * sin_high, out)
    tl.store(goal, first.to(out.dtype.element_ty), mask=there)
    tl.store(goal + D // 2, second.to(out.dtype.element_ty), mask=there)


@triton.jit
def rotate(
    query, key, turned_query, turned_key, cos, sin,
    heads, shared, query_head, query_token, key_head, key_token,
    out_head, out_token, out_key_head, out_key_token,
    HP: tl.constexpr, SP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Rotary positions of queries and keys [H, N, D] by cos and sin [N, D]. Grid: [N, 2]."""
    follow(CHAINED)
    if tl.program_id(1) == 0:
        _turned(query, turned_query, query_head, query_token, out_head, out_token, heads, cos, sin, HP, D, DP)
    else:
        _turned(key, turned_key, key_head, key_token, out_key_head, out_key_token, shared, cos, sin, SP, D, DP)


@triton.jit
def store(
    key, value, places, out, heads, key_head, key_token, value_head, value_token, out_which, out_head, out_token,
    HP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Keys and values [H, N, D] to their places in [2, H, total, D]. Grid: [N, 2]."""
    follow(CHAINED)
    token, head, d = tl.program_id(0).to(tl.int64), tl.arange(0, HP), tl.arange(0, DP)
    there = (head < heads)[:, None] & (d < D)[None, :]
    if tl.program_id(1) == 0:
        found = tl.load(key + token * key_token + head[:, None] * key_head + d[None, :], mask=there)
    else:
        found = tl.load(value + token * value_token + head[:, None] * value_head + d[None, :], mask=there)
    goal = out + tl.program_id(1).to(tl.int64) * out_which + tl.load(places + token) * out_token
    tl.store(goal + head.to(tl.int64)[:, None] * out_head + d[None, :], found, mask=there)


@triton.jit
def move(states, sources, goals, count, refused, member, head, D: tl.constexpr, DP: tl.constexpr, BLOCK: tl.constexpr):
    """Copy tokens of [L, H, total, D] from places to others, but for goals from `refused` on. Grid: [L, H].

    A program has all tokens of its head, and reads a block of them before it writes any. Sources of later blocks lie
    behind all goals before them.
    """
    own = states + tl.program_id(0).to(tl.int64) * member + tl.program_id(1).to(tl.int64) * head
    d = tl.arange(0, DP)
    for begin in range(0, count, BLOCK):
        n = begin + tl.arange(0, BLOCK)
        source = tl.load(sources + n, mask=n < count, other=0)
        goal = tl.load(goals + n, mask=n < count, other=0)
        moved = (goal != source) & (goal < refused)
        if tl.sum(moved.to(tl.int32), 0) > 0:
            there = moved[:, None] & (d < D)[None, :]
            found = tl.load(own + source[:, None] * D + d[None, :], mask=there)
            tl.debug_barrier()
            tl.store(own + goal[:, None] * D + d[None, :], found, mask=there)
            tl.debug_barrier()


@triton.jit
def gate(gates, values, out, count, BLOCK: tl.constexpr, CHAINED: tl.constexpr):
    """SiLU of gates times values. Grid: [count / BLOCK]."""
    follow(CHAINED)
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = place < count
    x = tl.load(gates + place, mask=there, other=0.0).to(tl.float32)
    found = silu(x, out) * tl.load(values + place, mask=there, other=0.0).to(tl.float32)
    tl.store(out + place, found.to(out.dtype.element_ty), mask=there)


interpreted = not isinstance(gate, triton.JITFunction)  # TRITON_INTERPRET was set
