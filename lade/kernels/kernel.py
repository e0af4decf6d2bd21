"""Attention of token trees as Triton kernels: `attend`, over parts of the keys, and `merge`, which joins the parts.

What they compute is `lade.kernels.reference`. Imported only where they run, since it imports triton.

A program of `attend` takes nodes of one row, folds up to 16 query heads of a head of keys into the rows of its matrix,
and goes over its share of the keys in blocks. Keys before the row's tree need no mask but at their end and where a
window or chunk begins; the keys of the tree follow from a new block on, so that a block needs one word of ancestors per
node. A score is a product, or the hyperbolic tangent of one, times a factor in units of log2. The factor is applied
with the subtraction of the largest score in one fused operation, which rounds once. Parts keep their sums undivided,
with the largest score and the total of their weights, so that joining them takes no logarithm.

n rows, T nodes, H heads of keys and values, G query heads of each, D and E head sizes of keys and values, S splits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lade.kernels import rows
from lade.kernels.pointwise import follow
from lade.kernels.pointwise import interpreted as interpreted

LOG2_E = tl.constexpr(1.4426950408889634)
NOTHING = tl.constexpr(float("-inf"))
FAR = tl.constexpr(1 << 30)
FIELDS = tl.constexpr(rows.FIELDS)
WORD = tl.constexpr(rows.WORD)


@triton.jit
def _tanh(x):
    """Where |x| is small, the difference of exponentials loses digits."""
    square = x * x
    near = x * (1 + square * (-1 / 3 + square * (2 / 15 + square * (-17 / 315))))
    far = 1 - 2 / (tl.exp2(tl.abs(x) * (2 * LOG2_E)) + 1)
    return tl.where(tl.abs(x) < 0.2, near, tl.where(x < 0, -far, far))


@triton.jit
def _dot(left, right, WIDEN: tl.constexpr):
    if WIDEN:  # the interpreter has no product of bfloat16
        left, right = left.to(tl.float32), right.to(tl.float32)
    return tl.dot(left, right, input_precision="ieee")


@triton.jit
def _row(entry):
    """A line of the table: first, nodes, keys, held, origin, done, columns, tree."""
    held = tl.load(entry + 3).to(tl.int32)
    origin = tl.load(entry + 4).to(tl.int32)
    done = tl.load(entry + 5).to(tl.int32)
    columns = tl.load(entry + 6).to(tl.int32)
    return (
        tl.load(entry), tl.load(entry + 1).to(tl.int32), tl.load(entry + 2), held, origin, done, columns,
        tl.load(entry + 7),
    )  # fmt: skip


@triton.jit
def _lines(begin, nodes, group, packed, BM: tl.constexpr, PACKED: tl.constexpr):
    """Of each line of a program: its node, its query head, and whether there is one; and the head of keys of all."""
    parts = (group + PACKED - 1) // PACKED
    line, per_block = tl.arange(0, BM), BM // packed
    node, in_group = begin + line // packed, tl.program_id(1) % parts * packed + line % packed
    live = (line < per_block * packed) & (node < nodes) & (in_group < group)
    shared = tl.program_id(1) // parts
    return node, shared * group + in_group, live, shared


@triton.jit
def _tree(trees, row, node, live, begin, per_block):
    """What a program's nodes see: where the keys of the tree begin and end, a chain's last one, places and bits."""
    _, nodes, _, held, _, done, columns, tree = row
    # A chain's nodes before the block are seen by all of it: they count to the keys before the tree.
    base = held + tl.where(tree >= 0, 0, done + begin)
    end = base + tl.where(tree >= 0, columns, tl.minimum(per_block, nodes - begin))
    edge = tl.where(tree >= 0, FAR, node - begin)
    in_tree = tl.where(tree >= 0, columns, 0)
    depths = trees + tree
    words = (depths + columns).to(tl.pointer_type(tl.int32))  # halves of words, the lower ones first
    has_depth = live & (tl.zeros_like(node) + in_tree > 0)
    own = tl.load(depths + done + node, mask=has_depth, other=0).to(tl.int32)
    own = held + tl.where(tree >= 0, own, done + node)
    return base, end, edge, own, in_tree, depths, words


@triton.jit
def _lowest(live, own, base, origin, limit, LIMIT: tl.constexpr):
    """Index of the first key that any node of the block sees, and of the first from which on all see all keys."""
    lowest = tl.maximum(-origin, 0)
    whole = lowest
    oldest = tl.min(tl.where(live, own, FAR), 0)
    newest = tl.max(tl.where(live, own, 0), 0)
    if LIMIT == 1:
        lowest = tl.maximum(lowest, oldest - limit + 1)
        whole = tl.maximum(whole, newest - limit + 1)
    if LIMIT == 2:
        lowest = tl.maximum(lowest, (oldest + origin) // limit * limit - origin)
        whole = tl.where((oldest + origin) // limit == (newest + origin) // limit, lowest, base)
    return tl.minimum(lowest, base), tl.minimum(whole, base)


@triton.jit
def _blocks(lowest, whole, base, end, splits, BK: tl.constexpr):
    """Blocks of keys: how many before the tree, a program's first and last one, and those that all nodes see whole."""
    in_prefix = (base - lowest + BK - 1) // BK
    all_blocks = in_prefix + (end - base + BK - 1) // BK
    share = (all_blocks + splits - 1) // splits
    begin_block = tl.program_id(2) * share
    whole_end = (base - lowest) // BK
    whole_begin = tl.minimum((whole - lowest + BK - 1) // BK, whole_end)
    return in_prefix, begin_block, tl.minimum(begin_block + share, all_blocks), whole_begin, whole_end


@triton.jit
def _visible(k, start, bound, node, live, tree, held, origin, limit, LIMIT: tl.constexpr):
    """[BM, BK] whether a node sees a key of the block from `start` on, before `bound`."""
    base, _, edge, own, columns, depths, words = tree  # no columns for a chain
    column = k - base
    seen = (k < bound)[None, :] & (column[None, :] <= edge[:, None])
    word = words + (node * ((columns + WORD - 1) // WORD) + tl.maximum(start - base, 0) // WORD) * 2
    has_word = live & (tl.zeros_like(node) + tl.where(start >= base, columns, 0) > 0)  # a vector for the interpreter
    low, high = tl.load(word, mask=has_word, other=-1), tl.load(word + 1, mask=has_word, other=-1)
    half = tl.where((column & 32)[None, :] == 0, low[:, None], high[:, None])
    seen &= ((half >> (column & 31)[None, :]) & 1) != 0
    if LIMIT != 0:
        inside = (column >= 0) & (column < columns)
        place = tl.where(inside, held + tl.load(depths + column, mask=inside, other=0).to(tl.int32), k)
        if LIMIT == 1:
            seen &= own[:, None] - place[None, :] < limit
        else:
            seen &= ((own + origin) // limit)[:, None] == ((place + origin) // limit)[None, :]
    return seen


@triton.jit
def _begun(sinks, head, live, BM: tl.constexpr, EP: tl.constexpr, SINKS: tl.constexpr):
    """The running softmax before the first block: largest score, total of the weights, weighted sums."""
    best = tl.full((BM,), NOTHING, tl.float32)
    total = tl.zeros((BM,), tl.float32)
    if SINKS:
        sink = tl.load(sinks + head, mask=live, other=0.0).to(tl.float32) * LOG2_E
        best = tl.where(tl.program_id(2) == 0, sink, best)
        total = tl.where(tl.program_id(2) == 0, 1.0, total)
    return best, total, tl.zeros((BM, EP), tl.float32)


@triton.jit
def _joined(best, total, sums, scores, factor, values, WIDEN: tl.constexpr):
    """The running softmax with one more block of scores [BM, BK], but for their factor, and values [BK, E]."""
    highest = tl.maximum(best, tl.max(scores, 1) * factor)
    shift = tl.where(highest == NOTHING, 0.0, highest)
    share = tl.exp2(tl.fma(scores, factor, -shift[:, None]))
    shrink = tl.exp2(best - shift)
    share = share.to(values.dtype)
    total = total * shrink + tl.sum(share.to(tl.float32), 1)  # of what is multiplied, so that rounding cancels
    sums = sums * shrink[:, None] + _dot(share, values, WIDEN)
    return highest, total, sums


@triton.jit(do_not_specialize=["tokens", "heads", "group", "blocks", "splits", "limit"])
def attend(
    query, key, value, out, weights, sinks, table, trees,
    tokens, heads, group, blocks, splits,
    query_head, query_token, key_head, key_token, value_head, value_token,
    inner, factor, limit,
    D: tl.constexpr, E: tl.constexpr, DP: tl.constexpr, EP: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
    LIMIT: tl.constexpr, CAPPED: tl.constexpr, SINKS: tl.constexpr, PARTIAL: tl.constexpr, WIDEN: tl.constexpr,
    PACKED: tl.constexpr, STAGES: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Grid: [n * blocks, H * ceil(G / PACKED), splits]. Scores are tanh(product * inner) where CAPPED."""
    follow(CHAINED)
    row = _row(table + tl.program_id(0) // blocks * FIELDS)
    first, nodes, slab, held, origin, _, _, _ = row
    packed = tl.minimum(group, PACKED)  # query heads of a program
    begin = tl.program_id(0) % blocks * (BM // packed)
    if begin >= nodes:
        return
    node, head, live, shared = _lines(begin, nodes, group, packed, BM, PACKED)
    d, e, offset = tl.arange(0, DP), tl.arange(0, EP), tl.arange(0, BK)
    at = (first + node) * query_token + head.to(tl.int64) * query_head
    q = tl.load(query + at[:, None] + d[None, :], mask=live[:, None] & (d < D)[None, :], other=0.0)
    tree = _tree(trees, row, node, live, begin, BM // packed)
    base, end = tree[0], tree[1]
    lowest, whole = _lowest(live, tree[3], base, origin, limit, LIMIT)
    in_prefix, begin_block, end_block, whole_begin, whole_end = _blocks(lowest, whole, base, end, splits, BK)
    best, total, sums = _begun(sinks, head, live, BM, EP, SINKS)
    keys = key + shared.to(tl.int64) * key_head + slab * key_token + offset[None, :] * key_token + d[:, None]
    values = value + shared.to(tl.int64) * value_head + slab * value_token + offset[:, None] * value_token + e[None, :]
    # Blocks where a window or chunk begins; blocks that all nodes see; the end of the prefix, and the tree.
    for span in tl.static_range(0 if LIMIT != 0 else 1, 3):
        low = begin_block if span == 0 else tl.maximum(begin_block, whole_begin if span == 1 else whole_end)
        high = end_block if span == 2 else tl.minimum(end_block, whole_begin if span == 0 else whole_end)
        for block in tl.range(low, high, num_stages=STAGES if span == 1 or query.dtype.element_ty == tl.float32 else 1):
            start = tl.where(block < in_prefix, lowest + block * BK, base + (block - in_prefix) * BK)
            bound = FAR if span == 1 else tl.where(block < in_prefix, base, end)
            k = start + offset
            k_mask, v_mask = (d < D)[:, None], (e < E)[None, :]
            if span != 1:
                k_mask, v_mask = k_mask & (k < bound)[None, :], v_mask & (k < bound)[:, None]
            k_block = tl.load(keys + start.to(tl.int64) * key_token, mask=k_mask, other=0.0)
            v_block = tl.load(values + start.to(tl.int64) * value_token, mask=v_mask, other=0.0)
            scores = _dot(q, k_block, WIDEN)
            if CAPPED:
                scores = _tanh(scores * inner)
            if span != 1:
                scores = tl.where(
                    _visible(k, start, bound, node, live, tree, held, origin, limit, LIMIT), scores, NOTHING
                )
            best, total, sums = _joined(best, total, sums, scores, factor, v_block, WIDEN)
    line = (tl.program_id(2).to(tl.int64) * tokens + first + node) * heads + head
    if PARTIAL:
        tl.store(weights + line * 2, best, mask=live)
        tl.store(weights + line * 2 + 1, total, mask=live)
    else:
        sums /= tl.where(total > 0, total, 1.0)[:, None]
    # A part without keys stores no sums: `merge` does not look at them.
    there = (live & (tl.zeros_like(node) + end_block > begin_block))[:, None] & (e < E)[None, :]
    tl.store(out + line[:, None] * E + e[None, :], sums.to(out.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["lines", "splits"])
def merge(
    parts, weights, out, lines, splits,
    E: tl.constexpr, EP: tl.constexpr, SPLITS: tl.constexpr, LINES: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Join parts [S, T * heads, E] by largest scores and totals [S, T * heads, 2]. Grid: [ceil(T * heads / LINES)]."""
    follow(CHAINED)
    line = tl.program_id(0).to(tl.int64) * LINES + tl.arange(0, LINES)
    split, e = tl.arange(0, SPLITS), tl.arange(0, EP)
    there = (split < splits)[:, None] & (line < lines)[None, :]
    at = split[:, None] * lines + line[None, :]
    inside = there[:, :, None] & (e < E)[None, None, :]
    found = tl.load(parts + at[:, :, None] * E + e[None, None, :], mask=inside, other=0.0)  # waits for no weight
    level = tl.load(weights + at * 2, mask=there, other=NOTHING)
    amount = tl.load(weights + at * 2 + 1, mask=there, other=0.0)
    best = tl.max(level, 0)
    weight = tl.exp2(level - tl.where(best == NOTHING, 0.0, best)[None, :])
    total = tl.sum(weight * amount, 0)
    found = tl.where((weight > 0)[:, :, None], found, 0.0)  # parts without keys have anything for sums
    result = tl.sum(found * weight[:, :, None], 0) / tl.where(total > 0, total, 1.0)[:, None]
    mask = (line < lines)[:, None] & (e < E)[None, :]
    tl.store(out + line[:, None] * E + e[None, :], result.to(out.dtype.element_ty), mask=mask)
