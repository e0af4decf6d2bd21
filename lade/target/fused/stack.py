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

from typing import Any

from lade.base.bits import SHORT_BYTES
from lade.base.compiled import Compiled, compiled
from lade.base.threads import Team
from lade.target.fused.layerarrays import LayerArrays, Nodes, Room, layer_at
from lade.target.fused.layerproducts import add, begin, project, transform, widen
from lade.target.fused.loops import Heads as StoredHeads
from lade.target.fused.loops import normalise, rotate_and_store
from lade.target.queryloops import Heads
from lade.target.rowloops import attend_rows

Array = Any  # of numbers: a numpy array, or its memoryview


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
        last: [M] bits of the last norm's factors.
        epsilon: float32, of the last norm.
        bits: the room's numbers, rounded: of float32 the same memory.
        found: [A, M] bits of the states that the head takes.
    """
    team, states, size = Team(fork, threads, counters), bits.states, len(last)
    short = states.itemsize == SHORT_BYTES
    for place in range(number):
        layer = layer_at(layers, place, kind)
        added = bits.added[: len(states) if place else 0]
        normalise(states, added, layer.before, layer.epsilons[0], short, room.squares, bits.normal)
        attend_layer(team, layer, heads, scaling, nodes, room, bits)
        normalise(states, bits.added, layer.after, layer.epsilons[1], short, room.squares, bits.normal)
        transform(team, layer, len(nodes.places), room, bits)
    for place in range(len(nodes.asked)):
        begins = nodes.asked[place] * size
        own, added = states[begins : begins + size], bits.added[begins : begins + size]
        normalise(own, added, last, epsilon, short, room.squares, found[place * size : place * size + size])


@compiled
def attend_layer(
    team: Team, layer: LayerArrays, heads: Heads, scaling: Any, nodes: Nodes, room: Room, bits: Room
) -> None:
    """The attention of a layer, from `normal` to `added`."""
    tokens, none = len(nodes.places), bits.queries[:0]
    short = bits.queries.itemsize == SHORT_BYTES
    project(team, layer, tokens, room, bits)
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
    begin(team.counters)
    attend_rows(
        team.fork,
        team.threads,
        team.counters,
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
    widen(bits.mixed, room.mixed)
    add(team, room.mixed, tokens, layer.output, room, bits)


COMPUTE = Compiled(compute_layers)
