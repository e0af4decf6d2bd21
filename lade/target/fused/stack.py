"""All decoder layers of a forward, and the norm after them, in one call that runs as machine code, for few tokens.

A call of PyTorch's takes microseconds, whatever it computes, and a layer makes twenty of them. Here one call computes
all layers, and threads share the products of queries, keys and values, and those of the gated MLP with its activation.
States are float32, with weights that are or that are packed in blocks of 16 bits, or bfloat16 with packed weights; they
are rounded wherever transformers' operations round them. Results differ from transformers' by the order of sums, and by
the last digit of exponentials.
T tokens, A asked ones; M hidden size, I size of the MLP; S heads of keys and values, each for G query heads; D head
size.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lade.base.bits import SHORT_BYTES, number, rounded
from lade.base.compiled import Compiled, compiled, compiled_as
from lade.base.threads import OPERATIONS, UNITS, WORKERS, spread, take
from lade.target.fused.loops import Heads as StoredHeads
from lade.target.fused.loops import normalise, rotate_and_store
from lade.target.fused.products import UNIT, multiply_unit
from lade.target.fused.products import multiply_units as add_lines
from lade.target.rowloops import Heads, attend_rows, exponential
from lade.weights.blockloops import PER_OPERATION, block_begin, lengthen, multiply_blocks, units_of
from lade.weights.blockloops import multiply_units as add_blocks
from lade.weights.blocks import LINES

Array = Any  # of numbers: a numpy array, or its memoryview


class LayerArrays(NamedTuple):
    """A decoder layer.

    Attributes:
        before, after: [M] bits of the norms' factors.
        query_norm, key_norm: [D] those of single heads; empty where there are none.
        epsilons: float32, of these four norms.
        query, key, value, output, gate, up, down: weights of the products: float32, line by line, or bits of bfloat16,
            in blocks (`lade.weights.blocks`).
        query_bias, key_bias, value_bias: float32 beside weights that are, else bits; empty where there are none.
        keys, values: [S, total, D] bits of all slots.
    """

    before: Array
    after: Array
    query_norm: Array
    key_norm: Array
    epsilons: Array
    query: Array
    key: Array
    value: Array
    output: Array
    gate: Array
    up: Array
    down: Array
    query_bias: Array
    key_bias: Array
    value_bias: Array
    keys: Array
    values: Array


# Of its arrays, by what tells the kinds apart: float32 states with such weights, float32 states with weights in blocks,
# and bfloat16 states. Bits are uint32 of float32, uint16 of bfloat16.
PLAIN, MIXED, SHORT = "f4", "u4", "u2"
ELEMENTS = {
    PLAIN: (*("u4",) * 4, *("f4",) * 11, *("u4",) * 2),
    MIXED: (*("u4",) * 4, "f4", *("u2",) * 7, *("u4",) * 5),
    SHORT: (*("u2",) * 4, "f4", *("u2",) * 12),
}


class Nodes(NamedTuple):
    """The tokens of a forward.

    Attributes:
        cosines, sines: [T, D / 2] bits of their positions'.
        places: [T] int64, in the slots.
        ends: int64, of each row's tokens.
        rows: int64, as of `attend_rows`.
        visible: uint8, as of `attend_rows`.
        asked: [A] int64, of them whose states the head takes.
    """

    cosines: Array
    sines: Array
    places: Array
    ends: Array
    rows: Array
    visible: Array
    asked: Array


class Room(NamedTuple):
    """Arrays to work in, float32.

    Attributes:
        states, normal, added: [T, M]; states are the residual stream, at first the token embeddings.
        queries, folded, mixed: [T, S * G * D]
        keys, values: [T, S * D]
        gate, up: [T, I]
        sums: [threads, T, LINES]; empty unless weights are in blocks.
        squares: [max(M, D)]
        scratch: as of `attend_rows`.
    """

    states: Array
    normal: Array
    added: Array
    queries: Array
    folded: Array
    mixed: Array
    keys: Array
    values: Array
    gate: Array
    up: Array
    sums: Array
    squares: Array
    scratch: Array


def _layer_at_addresses() -> Any:
    from lade.base.addresses import tuple_by

    return tuple_by(LayerArrays, ELEMENTS)


@compiled_as(_layer_at_addresses)
def layer_at(layers: Any, place: int, kind: Array) -> LayerArrays:
    """One of the layers; the array tells what they are made of, by its elements (`ELEMENTS`)."""
    layer: LayerArrays = layers[place]
    return layer


@compiled
def compute_layers(
    fork: int,
    threads: int,
    counters: Array,
    layers: Any,
    number: int,
    kind: Array,
    heads: Heads,
    scaling: Any,
    short: bool,
    nodes: Nodes,
    last: Array,
    epsilon: Any,
    room: Room,
    bits: Room,
    found: Array,
) -> None:
    """Compute some layers, and the norm after them.

    Args:
        fork, threads, counters: as of `lade.base.threads.spread`.
        layers: as `layer_at` takes them.
        number: how many.
        kind: as `layer_at` takes it.
        scaling: float32, of the scores of attention.
        short: whether bits are those of bfloat16.
        last: [M] bits of the last norm's factors.
        epsilon: float32, of the last norm.
        bits: the room's numbers, rounded: of float32 the same memory.
        found: [A, M] bits of the states that the head takes.
    """
    states, size = bits.states, len(last)
    for place in range(number):
        layer = layer_at(layers, place, kind)
        added = bits.added[: len(states) if place else 0]
        normalise(states, added, layer.before, layer.epsilons[0], short, room.squares, bits.normal)
        attend_layer(fork, threads, counters, layer, heads, scaling, short, nodes, room, bits)
        normalise(states, bits.added, layer.after, layer.epsilons[1], short, room.squares, bits.normal)
        transform(fork, threads, counters, layer, len(nodes.places), short, room, bits)
    for place in range(len(nodes.asked)):
        begins = nodes.asked[place] * size
        own, added = states[begins : begins + size], bits.added[begins : begins + size]
        normalise(own, added, last, epsilon, short, room.squares, found[place * size : place * size + size])


@compiled
def attend_layer(
    fork: int,
    threads: int,
    counters: Array,
    layer: LayerArrays,
    heads: Heads,
    scaling: Any,
    short: bool,
    nodes: Nodes,
    room: Room,
    bits: Room,
) -> None:
    """The attention of a layer, from `normal` to `added`."""
    tokens, none = len(nodes.places), bits.queries[:0]
    project(fork, threads, counters, layer, tokens, short, room, bits)
    if len(layer.query_norm):
        normalise(bits.queries, none, layer.query_norm, layer.epsilons[2], short, room.squares, bits.queries)
        normalise(bits.keys, none, layer.key_norm, layer.epsilons[3], short, room.squares, bits.keys)
    stored = StoredHeads(heads.stored, heads.stored, heads.size)
    rotate_and_store(
        bits.queries,
        bits.keys,
        bits.values,
        nodes.cosines,
        nodes.sines,
        nodes.places,
        nodes.ends,
        stored,
        short,
        bits.folded,
        layer.keys,
        layer.values,
    )
    begin(counters)
    attend_rows(
        fork,
        threads,
        counters,
        bits.folded,
        layer.keys,
        layer.values,
        nodes.rows,
        nodes.visible,
        heads,
        scaling,
        short,
        room.scratch,
        bits.mixed,
    )
    if short:
        lengthen(bits.mixed, short, room.mixed)
    add(fork, threads, counters, room.mixed, tokens, layer.output, short, room, bits)


@compiled
def project(
    fork: int, threads: int, counters: Array, layer: LayerArrays, tokens: int, short: bool, room: Room, bits: Room
) -> None:
    """Queries, keys and values of `normal`."""
    together = worth(tokens * (len(layer.query) + len(layer.key) + len(layer.value)), threads)
    if short:
        lengthen(bits.normal, short, room.normal)
    begin(counters)
    spread(fork, together, project_units, (counters, together, layer, tokens, short, room, bits))


@compiled
def project_units(
    counters: Array, threads: int, layer: LayerArrays, tokens: int, short: bool, room: Room, bits: Room
) -> None:
    """The share of one thread: some lines of a weight at a time."""
    states, first, second = room.normal, units_of(len(room.queries) // tokens), units_of(len(room.keys) // tokens)
    sums = room.sums[take(counters, WORKERS) * tokens * LINES :]
    unit = take(counters, UNITS)
    while unit < first + 2 * second:
        after = unit + threads
        if after < first:
            later = layer.query[block_begin(layer.query, first, after) :]
        elif after < first + second:
            later = layer.key[block_begin(layer.key, second, after - first) :]
        else:
            later = layer.value[block_begin(layer.value, second, after - first - second) :]
        if unit < first:
            own, bias, place = layer.query, layer.query_bias, unit
            multiply_rounded(states, tokens, own, bias, later, short, sums, room.queries, bits.queries, place)
        elif unit < first + second:
            own, bias, place = layer.key, layer.key_bias, unit - first
            multiply_rounded(states, tokens, own, bias, later, short, sums, room.keys, bits.keys, place)
        else:
            own, bias, place = layer.value, layer.value_bias, unit - first - second
            multiply_rounded(states, tokens, own, bias, later, short, sums, room.values, bits.values, place)
        unit = take(counters, UNITS)


@compiled
def transform(
    fork: int, threads: int, counters: Array, layer: LayerArrays, tokens: int, short: bool, room: Room, bits: Room
) -> None:
    """The gated MLP of a layer, from `normal` to `added` (arXiv 2002.05202)."""
    if short:
        lengthen(bits.normal, short, room.normal)
    begin(counters)
    together = worth(2 * tokens * len(layer.gate), threads)
    spread(fork, together, gate_units, (counters, together, layer, tokens, short, room, bits))
    add(fork, threads, counters, room.gate, tokens, layer.down, short, room, bits)


@compiled
def gate_units(
    counters: Array, threads: int, layer: LayerArrays, tokens: int, short: bool, room: Room, bits: Room
) -> None:
    """The share of one thread: some lines of both weights at a time, and the activation of their products."""
    states, lines, none = room.normal, len(room.gate) // tokens, layer.gate[:0]
    sums = room.sums[take(counters, WORKERS) * tokens * LINES :]
    units, unit = units_of(lines), take(counters, UNITS)
    while unit < units:
        after = layer.up[block_begin(layer.up, units, unit) :]
        later = layer.gate[block_begin(layer.gate, units, unit + threads) :]
        multiply_rounded(states, tokens, layer.gate, none, after, short, sums, room.gate, bits.gate, unit)
        multiply_rounded(states, tokens, layer.up, none, later, short, sums, room.up, bits.up, unit)
        for token in range(tokens):
            first, end = token * lines + unit * UNIT, token * lines + min(unit * UNIT + UNIT, lines)
            activate(bits.gate[first:end], bits.up[first:end], short)
            if short:
                lengthen(bits.gate[first:end], short, room.gate[first:end])
        unit = take(counters, UNITS)


@compiled
def add(
    fork: int,
    threads: int,
    counters: Array,
    states: Array,
    tokens: int,
    weight: Array,
    short: bool,
    room: Room,
    bits: Room,
) -> None:
    """The product that goes to `added`."""
    begin(counters)
    together = worth(tokens * len(weight), threads)
    spread(fork, together, add_units, (counters, together, states, tokens, weight, short, room, bits))


@compiled
def add_units(
    counters: Array, threads: int, states: Array, tokens: int, weight: Array, short: bool, room: Room, bits: Room
) -> None:
    """The share of one thread."""
    if weight.itemsize == SHORT_BYTES:
        add_blocks(counters, threads, states, tokens, weight, weight[:0], short, room.sums, bits.added)
    else:
        add_lines(counters, states, tokens, weight, room.added)


@compiled
def multiply_rounded(
    states: Array,
    tokens: int,
    weight: Array,
    bias: Array,
    later: Array,
    short: bool,
    sums: Array,
    out: Array,
    bits: Array,
    unit: int,
) -> None:
    """Some lines of a product, as numbers or bits: of float32, they are the same."""
    if weight.itemsize == SHORT_BYTES:
        multiply_blocks(states, tokens, weight, bias, later, short, sums, bits, unit)
    else:
        multiply_unit(states, tokens, weight, bias, out, unit)


@compiled
def activate(gate: Array, up: Array, short: bool) -> None:
    """SiLU of some numbers times others, in place of the former; all are bits."""
    one = np.float32(1.0)
    for place in range(len(gate)):
        value = number(gate[place], short)
        weight = exponential(-value if value > 0 else value)
        share = np.float32((one if value > 0 else weight) / np.float32(one + weight))
        active = number(rounded(np.float32(value * share), short), short)
        gate[place] = rounded(np.float32(active * number(up[place], short)), short)


@compiled
def begin(counters: Array) -> None:
    """Before each `spread`."""
    counters[WORKERS], counters[UNITS] = 0, 0


@compiled
def worth(products: int, threads: int) -> int:
    """How many of the threads so many products of two numbers are worth (`threads_for`)."""
    return min(threads, 1 + products // (PER_OPERATION * OPERATIONS))


COMPUTE = Compiled(compute_layers)
