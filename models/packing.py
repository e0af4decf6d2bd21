"""Packing the weights of a model as it is fastest on this CPU."""

from __future__ import annotations

from typing import Any

from lade.drafters import compiling
from lade.weights import packing


def pack_weights(model: Any) -> int:
    """Store the weights of a model's linear layers in the layout that oneDNN multiplies fastest on this CPU, in place.

    In half precision plain and lookahead decoding take less time. A float32 weight whose numbers are all bfloat16's, as
    those of most checkpoints are, is stored in 16 bits where numba is installed: machine code multiplies it in float32,
    in less time and half of the memory; until that is compiled, at a machine's first use, it takes longer. So is one in
    bfloat16 on x86 processors for which oneDNN packs none (those without AVX-512). Of other float32 weights many tokens
    at once take less time, and few may be faster with plain ones (`lade.models.load` with `pack=None`). Products are
    the same up to rounding; in bfloat16 with AVX-512 they were the same bits. No second copy of a weight is kept, but
    for one that an embedding shares. The model's checkpoint stays as it is. Until `unpack_weights` the model cannot be
    trained, and while either works it must not decode.

    Layers stay plain that are small or not on the CPU, have patches or quantised weights, or whose dtype nothing packs
    on this machine: float64, and on older processors float16.

    Args:
        model: a causal language model of transformers, or a wrapper around one.

    Returns:
        How many linear layers are packed.

    Raises:
        ValueError: `model` is no model, or one that reads weights of linear layers without calling these.
    """
    possible = compiling.possible()
    found = packing.pack_weights(model, short=possible)
    if possible:
        compiling.begin()
    return found
