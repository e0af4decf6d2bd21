"""The products of a decoder layer, which threads share: queries, keys and values, the gated MLP, and what is added.

Arrays are those of `lade.target.fused.layerarrays`; bits are rounded wherever transformers' operations round.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lade.base.bits import SHORT_BYTES, number, rounded
from lade.base.compiled import compiled
from lade.base.softmax import exponential
from lade.base.threads import OPERATIONS, UNITS, WORKERS, Team, spread, take
from lade.target.fused.layerarrays import LayerArrays, Room
from lade.target.fused.products import UNIT, multiply_unit
from lade.target.fused.products import multiply_units as add_lines
from lade.weights.blockloops import PER_OPERATION, block_begin, lengthen, multiply_blocks, units_of
from lade.weights.blockloops import multiply_units as add_blocks
from lade.weights.blocks import LINES

Array = Any  # of numbers: a numpy array, or its memoryview


@compiled
def project(team: Team, layer: LayerArrays, tokens: int, room: Room, bits: Room) -> None:
    """Queries, keys and values of `normal`."""
    together = worth(tokens * (len(layer.query) + len(layer.key) + len(layer.value)), team.threads)
    widen(bits.normal, room.normal)
    begin(team.counters)
    spread(team.fork, together, project_units, (team.counters, together, layer, tokens, room, bits))


@compiled
def project_units(counters: Array, threads: int, layer: LayerArrays, tokens: int, room: Room, bits: Room) -> None:
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
            multiply_rounded(states, tokens, own, bias, later, sums, room.queries, bits.queries, place)
        elif unit < first + second:
            own, bias, place = layer.key, layer.key_bias, unit - first
            multiply_rounded(states, tokens, own, bias, later, sums, room.keys, bits.keys, place)
        else:
            own, bias, place = layer.value, layer.value_bias, unit - first - second
            multiply_rounded(states, tokens, own, bias, later, sums, room.values, bits.values, place)
        unit = take(counters, UNITS)


@compiled
def transform(team: Team, layer: LayerArrays, tokens: int, room: Room, bits: Room) -> None:
    """The gated MLP of a layer, from `normal` to `added` (arXiv 2002.05202)."""
    widen(bits.normal, room.normal)
    begin(team.counters)
    together = worth(2 * tokens * len(layer.gate), team.threads)
    spread(team.fork, together, gate_units, (team.counters, together, layer, tokens, room, bits))
    add(team, room.gate, tokens, layer.down, room, bits)


@compiled
def gate_units(counters: Array, threads: int, layer: LayerArrays, tokens: int, room: Room, bits: Room) -> None:
    """The share of one thread: some lines of both weights at a time, and the activation of their products."""
    states, lines, none = room.normal, len(room.gate) // tokens, layer.gate[:0]
    sums = room.sums[take(counters, WORKERS) * tokens * LINES :]
    units, unit = units_of(lines), take(counters, UNITS)
    while unit < units:
        after = layer.up[block_begin(layer.up, units, unit) :]
        later = layer.gate[block_begin(layer.gate, units, unit + threads) :]
        multiply_rounded(states, tokens, layer.gate, none, after, sums, room.gate, bits.gate, unit)
        multiply_rounded(states, tokens, layer.up, none, later, sums, room.up, bits.up, unit)
        for token in range(tokens):
            first, end = token * lines + unit * UNIT, token * lines + min(unit * UNIT + UNIT, lines)
            activate(bits.gate[first:end], bits.up[first:end])
            widen(bits.gate[first:end], room.gate[first:end])
        unit = take(counters, UNITS)


@compiled
def add(team: Team, states: Array, tokens: int, weight: Array, room: Room, bits: Room) -> None:
    """The product that goes to `added`."""
    begin(team.counters)
    together = worth(tokens * len(weight), team.threads)
    spread(team.fork, together, add_units, (team.counters, together, states, tokens, weight, room, bits))


@compiled
def add_units(counters: Array, threads: int, states: Array, tokens: int, weight: Array, room: Room, bits: Room) -> None:
    """The share of one thread."""
    short = bits.added.itemsize == SHORT_BYTES
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
    sums: Array,
    out: Array,
    bits: Array,
    unit: int,
) -> None:
    """Some lines of a product, as numbers or bits: of float32, they are the same."""
    if weight.itemsize == SHORT_BYTES:
        multiply_blocks(states, tokens, weight, bias, later, bits.itemsize == SHORT_BYTES, sums, bits, unit)
    else:
        multiply_unit(states, tokens, weight, bias, out, unit)


@compiled
def activate(gate: Array, up: Array) -> None:
    """SiLU of some numbers times others, in place of the former; all are bits."""
    one, short = np.float32(1.0), gate.itemsize == SHORT_BYTES
    for place in range(len(gate)):
        value = number(gate[place], short)
        weight = exponential(-value if value > 0 else value)
        share = np.float32((one if value > 0 else weight) / np.float32(one + weight))
        active = number(rounded(np.float32(value * share), short), short)
        gate[place] = rounded(np.float32(active * number(up[place], short)), short)


@compiled
def widen(bits: Array, numbers: Array) -> None:
    """Bits of bfloat16 to float32; those of float32 are the numbers' own."""
    if bits.itemsize == SHORT_BYTES:
        lengthen(bits, True, numbers)


@compiled
def begin(counters: Array) -> None:
    """Before each `spread`."""
    counters[WORKERS], counters[UNITS] = 0, 0


@compiled
def worth(products: int, threads: int) -> int:
    """How many of the threads so many products of two numbers are worth (`threads_for`)."""
    return min(threads, 1 + products // (PER_OPERATION * OPERATIONS))
