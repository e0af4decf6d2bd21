"""The prior of a cost curve on an accelerator: a roofline (Williams et al., CACM 2009) from what the device measures.

A step reads all weights and the keys and values of its rows, and computes two operations per weight and token. What
takes longer decides; of the other a share does not overlap. It prices 64 nodes of a 7B model in bfloat16 on an H100 at
about 1.08 steps, where 1.05 were measured with PyTorch's products and 1.13 with lade's (docs/accelerator.md), and is
corrected by measurement. Knows no drafting.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from lade.base.seconds import least_seconds
from lade.facts.precision import is_quantised
from lade.facts.products import slow_on_cpu
from lade.pace.prior import PRIOR, SERIAL, CurvePrior
from lade.weights.packing import SHORT, packing_of

EXPOSED = 0.25  # share of the shorter of reading and computing that the longer one does not hide
COPIED = 1 << 27  # bytes of the buffer whose copy shows the bandwidth: beyond any cache
SIDE = 4096  # of the matrices whose product shows the speed of computing
MEASURED = "cuda"  # the type of devices that are measured


@dataclass(frozen=True)
class Device:
    """Measured speeds.

    Attributes:
        bandwidth: bytes per second, read and written ones together.
        operations: per second, in the type of the model.
    """

    bandwidth: float
    operations: float


@dataclass(frozen=True)
class RooflinePrior(CurvePrior):
    """The prior of one model on one device.

    Attributes:
        weight_bytes: that a step reads.
        weights: that take part in the computation of every token.
        kv_bytes: keys and values of one token.
        device: the device's speeds.
    """

    weight_bytes: int = 0
    weights: int = 0
    kv_bytes: int = 0
    device: Device = Device(1.0, math.inf)

    def seconds(self, tokens: float, rows: float = 1.0, context: float = 1.0) -> float:
        """Of a step."""
        reading = (self.weight_bytes + rows * context * self.kv_bytes) / self.device.bandwidth
        computing = 2 * self.weights * tokens / self.device.operations
        return max(reading, computing) + EXPOSED * min(reading, computing)

    def log_cost(self, tokens: float, rows: float = 1.0, context: float = 1.0) -> float:
        """Mean of the logarithm of the cost of a step over that of one token per row."""
        return math.log(self.seconds(tokens, rows, context) / self.seconds(rows, rows, context))


def prior_for(model: Any) -> CurvePrior:
    """The prior of a model where it lies."""
    if model.device.type != MEASURED:
        return SERIAL if _is_serial(model) else PRIOR
    return roofline_of(model, measured(model.device, model.dtype))


def _is_serial(model: Any) -> bool:
    """Whether the products of this model are computed token by token, as torch's are; loops compute those in blocks."""
    slow = model.device.type == "cpu" and slow_on_cpu(model.dtype)
    return slow and not is_quantised(model) and packing_of(model) != SHORT


def roofline_of(model: Any, device: Device) -> RooflinePrior:
    """The prior of a model on a device of these speeds.

    Experts that a token does not use count as weights: for them the prior is an upper bound.
    """
    own = list(model.parameters())
    embedding = model.get_input_embeddings()
    tied = model.get_output_embeddings() is not None and (model.get_output_embeddings().weight is embedding.weight)
    looked_up = 0 if tied else embedding.weight.numel()  # of which a step reads a row per token
    size = embedding.weight.element_size()
    return RooflinePrior(
        weight_bytes=sum(parameter.nbytes for parameter in own) - looked_up * size,
        weights=sum(map(torch.Tensor.numel, own)) - looked_up,
        kv_bytes=_kv_bytes(model),
        device=device,
    )


def _kv_bytes(model: Any) -> int:
    config = model.config.get_text_config(decoder=True)
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(2 * config.num_hidden_layers * heads * size * model.dtype.itemsize)


@cache
def measured(device: torch.device, dtype: torch.dtype, copied: int = COPIED, side: int = SIDE) -> Device:
    """The speeds of a device, measured once per process, in some milliseconds on an accelerator.

    Args:
        copied: bytes of the buffer that is copied.
        side: of the matrices that are multiplied.
    """
    source = torch.empty(copied, dtype=torch.uint8, device=device)
    goal, square = torch.empty_like(source), torch.ones(side, side, dtype=dtype, device=device)
    product = torch.empty_like(square)
    copying = least_seconds(lambda: goal.copy_(source), device)
    computing = least_seconds(lambda: torch.mm(square, square, out=product), device)
    return Device(bandwidth=2 * copied / copying, operations=2 * side**3 / computing)
