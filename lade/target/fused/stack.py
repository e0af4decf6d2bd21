"""All decoder layers of a forward in one call that runs as machine code, for few tokens.

A call of PyTorch's takes microseconds, whatever it computes, and a layer makes twenty of them. Here one call computes
all layers, and threads share the products of queries, keys and values, and those of the gated MLP with its activation.
Float32; results differ from transformers' by the order of sums, and by the last digit of exponentials.
T tokens, M hidden size, I size of the MLP; S heads of keys and values, each for G query heads; D head size.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lade.base.compiled import Compiled, compiled, compiled_as
from lade.base.threads import OPERATIONS, UNITS, WORKERS, spread, take
from lade.target.fused.loops import Heads as StoredHeads
from lade.target.fused.loops import normalise, rotate_and_store
from lade.target.fused.products import PER_OPERATION, UNIT, multiply, multiply_unit, units_of
from lade.target.rowloops import Heads, attend_rows, exponential

Array = Any  # of numbers: a numpy array, or its memoryview


class LayerArrays(NamedTuple):
    """A decoder layer.

    Attributes:
        before, after: [M] uint32, bits of the norms' factors.
        query_norm, key_norm: [D] uint32, those of single heads; empty where there are none.
        epsilons: of these four norms.
        query, key, value, output, gate, up, down: float32, weights of the products, line by line.
        query_bias, key_bias, value_bias: float32; empty where there are none.
        keys, values: [S, total, D] uint32, bits of all slots.
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


ELEMENTS = *("u4",) * 4, *("f4",) * 11, *("u4",) * 2  # of its arrays, as dtypes


class Nodes(NamedTuple):
    """The tokens of a forward.

    Attributes:
        cosines, sines: [T, D / 2] uint32, bits of their positions'.
        places: [T] int64, in the slots.
        ends: int64, of each row's tokens.
        rows: int64, as of `attend_rows`.
        visible: uint8, as of `attend_rows`.
    """

    cosines: Array
    sines: Array
    places: Array
    ends: Array
    rows: Array
    visible: Array


class Room(NamedTuple):
    """Arrays to work in, float32.

    Attributes:
        normal, added: [T, M]
        queries, folded, mixed: [T, S * G * D]
        keys, values: [T, S * D]
        gate, up: [T, I]
        squares: [max(M, D)]
        scratch: as of `attend_rows`.
    """

    normal: Array
    added: Array
    queries: Array
    folded: Array
    mixed: Array
    keys: Array
    values: Array
    gate: Array
    up: Array
    squares: Array
    scratch: Array


def _layer_at_addresses() -> Any:
    from lade.base.addresses import tuple_at

    return tuple_at(LayerArrays, ELEMENTS)


@compiled_as(_layer_at_addresses)
def layer_at(layers: Any, place: int) -> LayerArrays:
    """One of the layers."""
    layer: LayerArrays = layers[place]
    return layer


@compiled
def compute_layers(
    fork: int,
    threads: int,
    counters: Array,
    layers: Any,
    number: int,
    heads: Heads,
    scaling: Any,
    nodes: Nodes,
    states: Array,
    room: Room,
    bits: Room,
) -> None:
    """Compute some layers.

    Args:
        fork, threads, counters: as of `lade.base.threads.spread`.
        layers: as `layer_at` takes them.
        number: how many.
        scaling: float32, of the scores of attention.
        states: [T, M] uint32, bits of the residual stream; what the last layer adds to it is in the room's `added`.
        bits: the same memory as the room, as uint32.
    """
    for place in range(number):
        layer = layer_at(layers, place)
        added = bits.added[: len(states) if place else 0]
        normalise(states, added, layer.before, layer.epsilons[0], False, room.squares, bits.normal)
        attend_layer(fork, threads, counters, layer, heads, scaling, nodes, room, bits)
        normalise(states, bits.added, layer.after, layer.epsilons[1], False, room.squares, bits.normal)
        transform(fork, threads, counters, layer, len(nodes.places), room)


@compiled
def attend_layer(
    fork: int,
    threads: int,
    counters: Array,
    layer: LayerArrays,
    heads: Heads,
    scaling: Any,
    nodes: Nodes,
    room: Room,
    bits: Room,
) -> None:
    """The attention of a layer, from `normal` to `added`."""
    tokens, none = len(nodes.places), bits.queries[:0]
    project(fork, threads, counters, layer, tokens, room)
    if len(layer.query_norm):
        normalise(bits.queries, none, layer.query_norm, layer.epsilons[2], False, room.squares, bits.queries)
        normalise(bits.keys, none, layer.key_norm, layer.epsilons[3], False, room.squares, bits.keys)
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
        False,
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
        False,
        room.scratch,
        bits.mixed,
    )
    begin(counters)
    multiply(fork, worth(tokens * len(layer.output), threads), counters, room.mixed, tokens, layer.output, room.added)


@compiled
def project(fork: int, threads: int, counters: Array, layer: LayerArrays, tokens: int, room: Room) -> None:
    """Queries, keys and values of `normal`."""
    work = tokens * (len(layer.query) + len(layer.key) + len(layer.value))
    begin(counters)
    spread(fork, worth(work, threads), project_units, (counters, layer, tokens, room))


@compiled
def project_units(counters: Array, layer: LayerArrays, tokens: int, room: Room) -> None:
    """The share of one thread: some lines of a weight at a time."""
    first, second = units_of(len(room.queries) // tokens), units_of(len(room.keys) // tokens)
    unit = take(counters, UNITS)
    while unit < first + 2 * second:
        if unit < first:
            multiply_unit(room.normal, tokens, layer.query, layer.query_bias, room.queries, unit)
        elif unit < first + second:
            multiply_unit(room.normal, tokens, layer.key, layer.key_bias, room.keys, unit - first)
        else:
            multiply_unit(room.normal, tokens, layer.value, layer.value_bias, room.values, unit - first - second)
        unit = take(counters, UNITS)


@compiled
def transform(fork: int, threads: int, counters: Array, layer: LayerArrays, tokens: int, room: Room) -> None:
    """The gated MLP of a layer, from `normal` to `added` (arXiv 2002.05202)."""
    begin(counters)
    spread(fork, worth(2 * tokens * len(layer.gate), threads), gate_units, (counters, layer, tokens, room))
    begin(counters)
    multiply(fork, worth(tokens * len(layer.down), threads), counters, room.gate, tokens, layer.down, room.added)


@compiled
def gate_units(counters: Array, layer: LayerArrays, tokens: int, room: Room) -> None:
    """The share of one thread: some lines of both weights at a time, and the activation of their products."""
    lines, none = len(room.gate) // tokens, layer.gate[:0]
    unit = take(counters, UNITS)
    while unit < units_of(lines):
        multiply_unit(room.normal, tokens, layer.gate, none, room.gate, unit)
        multiply_unit(room.normal, tokens, layer.up, none, room.up, unit)
        for token in range(tokens):
            first, end = token * lines + unit * UNIT, token * lines + min(unit * UNIT + UNIT, lines)
            activate(room.gate[first:end], room.up[first:end])
        unit = take(counters, UNITS)


@compiled
def activate(gate: Array, up: Array) -> None:
    """SiLU of some numbers times others, in place of the former."""
    one = np.float32(1.0)
    for place in range(len(gate)):
        value = np.float32(gate[place])
        weight = exponential(-value if value > 0 else value)
        share = np.float32((one if value > 0 else weight) / np.float32(one + weight))
        gate[place] = np.float32(np.float32(value * share) * up[place])


@compiled
def begin(counters: Array) -> None:
    """Before each `spread`."""
    counters[WORKERS], counters[UNITS] = 0, 0


@compiled
def worth(products: int, threads: int) -> int:
    """How many of the threads so many products of two numbers are worth (`threads_for`)."""
    return min(threads, 1 + products // (PER_OPERATION * OPERATIONS))


COMPUTE = Compiled(compute_layers)
