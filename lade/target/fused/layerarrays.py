"""What the call of all layers (`lade.target.fused.stack`) takes: layers, tokens, and room to work in, as arrays.

T tokens, A asked ones; M hidden size, I size of the MLP; S heads of keys and values, each for G query heads; D head
size.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from lade.base.compiled import compiled_as

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
