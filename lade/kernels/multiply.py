"""Products of few tokens with weights as a Triton kernel, which reads each weight once and is limited by that.

A program has BN lines of a weight, or of two where SiLU of one gates the other, and goes over its part of their K
numbers in blocks. Up to three weights share a launch. In a chain (`lade.kernels.chain`) a program begins while the
kernel before it ends, and asks for the first blocks of its lines before it waits for that kernel.

T tokens, K numbers of each, N lines of all weights together. Imported only where it runs, since it imports triton.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from lade.kernels import sizes
from lade.kernels.pointwise import interpreted as interpreted
from lade.kernels.pointwise import rounded, silu

ASKED = tl.constexpr(128)  # bytes of one prefetch
APART = tl.constexpr(sizes.APART)


@triton.jit
def _ask(weight, n, lines, K, begin, NUMBERS: tl.constexpr):
    """Bring the numbers of a program's lines from `begin` on to the second level cache."""
    each: tl.constexpr = ASKED // (weight.dtype.element_ty.primitive_bitwidth // 8)
    k = begin + tl.arange(0, NUMBERS // each) * each
    at = tl.minimum(n, lines - 1).to(tl.int64)[:, None] * K + tl.minimum(k, K - 1)[None, :]
    tl.inline_asm_elementwise(
        "{ prefetch.global.L2 [$1]; mov.u32 $0, 0; }", "=r,l", [weight + at], tl.int32, is_pure=False, pack=1
    )


@triton.jit
def _read(at, inside, EVEN: tl.constexpr):
    if EVEN:
        found = tl.load(at, eviction_policy="evict_first")
    else:
        found = tl.load(at, mask=inside, other=0.0, eviction_policy="evict_first")
    return found


@triton.jit
def _added(sums, states, lines, SWAP: tl.constexpr, WIDEN: tl.constexpr):
    if WIDEN:  # the interpreter has no product of bfloat16
        states, lines = states.to(tl.float32), lines.to(tl.float32)
    return tl.dot(lines, states.T, sums) if SWAP else tl.dot(states, lines.T, sums)


@triton.jit
def _products(
    x, weight, gap, tokens, n, lines, K, begin, end,
    BT: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr, SWAP: tl.constexpr, PAIR: tl.constexpr,
    STAGES: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """[BT, BN], or [BN, BT] where SWAP: with the lines of a weight, and where PAIR with those `gap` numbers behind."""
    t, k = tl.arange(0, BT), tl.arange(0, BK)
    found = tl.zeros((BN, BT) if SWAP else (BT, BN), tl.float32)
    others = tl.zeros((BN, BT) if SWAP else (BT, BN), tl.float32)
    at = weight + tl.minimum(n, lines - 1).to(tl.int64)[:, None] * K + k[None, :]
    states = x + t[:, None] * K + k[None, :]
    for start in tl.range(begin, end, BK, num_stages=STAGES):
        inside = (k < BK)[None, :] if EVEN else (start + k < end)[None, :]
        left = tl.load(states + start, mask=(t < tokens)[:, None] & inside, other=0.0)
        found = _added(found, left, _read(at + start, inside, EVEN), SWAP, WIDEN)
        if PAIR:
            others = _added(others, left, _read(at + gap + start, inside, EVEN), SWAP, WIDEN)
    return found, others


@triton.jit
def _all_parts(found, scratch, counter, part, place, there, tokens, N, SPLIT: tl.constexpr):
    """Whether this program is the last one of its tile, and the sums of all parts of K, in their order, if it is."""
    mine = scratch + part.to(tl.int64) * tokens * N
    tl.store(mine + place, found, mask=there)
    tl.debug_barrier()
    last = tl.atomic_add(counter, 1, sem="acq_rel") == SPLIT - 1
    tl.debug_barrier()
    sums = tl.zeros_like(found)
    if last:
        for other in range(SPLIT):
            sums += tl.load(scratch + other * tokens * N + place, mask=there, other=0.0, cache_modifier=".cg")
        tl.store(counter, 0)
    return last, sums


@triton.jit(
    do_not_specialize=[
        *("tokens", "lines", "lines_second", "lines_third"), *("second", "third", "apart_second", "apart_third"),
        *("bias_second", "bias_third"),
    ]
)  # fmt: skip
def multiply(
    x, weight, out, bias, residual, scratch, counters,
    tokens, K, N, lines, lines_second, lines_third, second, third, apart_second, apart_third,
    bias_second, bias_third,
    BT: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SPLIT: tl.constexpr, EVEN: tl.constexpr, SWAP: tl.constexpr,
    PAIR: tl.constexpr, BIAS: tl.constexpr, RESIDUAL: tl.constexpr, STAGES: tl.constexpr, AHEAD: tl.constexpr,
    CHAINED: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """[T, N] of [T, K]. Grid: [tiles, SPLIT].

    Tiles of the second and third weight begin at `second` and `third`; these lie `apart` times `APART` numbers from the
    first one. Where PAIR, the second weight is that of the gated values. AHEAD: numbers of a line that are asked for.
    """
    tile, part = tl.program_id(0), tl.program_id(1)
    in_second, in_third = tile >= second, tile >= third
    own = tl.where(in_third, third, tl.where(in_second, second, 0))
    count = tl.where(in_third, lines_third, tl.where(in_second, lines_second, lines))
    apart = tl.where(in_third, apart_third, tl.where(in_second, apart_second, 0)).to(tl.int64) * APART
    column = tl.where(in_third, lines + lines_second, tl.where(in_second, lines, 0))
    gap = apart_second.to(tl.int64) * APART
    n, t = (tile - own) * BN + tl.arange(0, BN), tl.arange(0, BT)
    share = tl.cdiv(tl.cdiv(K, BK), SPLIT) * BK
    begin = part * share
    end = tl.minimum(begin + share, K)
    if CHAINED:
        gdc_launch_dependents()
        if AHEAD > 0:
            _ask(weight + apart, n, count, K, begin, AHEAD)
            if PAIR:
                _ask(weight + gap, n, count, K, begin, AHEAD)
        gdc_wait()
    found, others = _products(
        x, weight + apart, gap, tokens, n, count, K, begin, end, BT, BN, BK, EVEN, SWAP, PAIR, STAGES, WIDEN
    )
    n, t = (n[:, None], t[None, :]) if SWAP else (n[None, :], t[:, None])
    there, place = (n < count) & (t < tokens), t * N + column + n
    last = True
    if SPLIT > 1:
        last, found = _all_parts(found, scratch, counters + tile, part, place, there, tokens, N, SPLIT)
    if last:
        if PAIR:
            found = silu(rounded(found, out), out) * rounded(others, out)
        if BIAS:
            behind = tl.where(in_third, bias_third, tl.where(in_second, bias_second, 0))
            found += tl.load(bias + behind + n, mask=n < count, other=0.0).to(tl.float32)
        if RESIDUAL:
            found = rounded(found, out) + tl.load(residual + place, mask=there, other=0.0).to(tl.float32)
        tl.store(out + place, found.to(out.dtype.element_ty), mask=there)
