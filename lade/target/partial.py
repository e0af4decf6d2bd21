"""Attention to some of a row's keys, with the log-sum-exp of its scores, by which two such parts become the whole.

Knows PyTorch's kernels, no model and no tree. H heads, Q queries of a head, K keys, D head size.

The softmax over the keys of two parts is the mean of the parts' results, weighted with exp(log-sum-exp)
(arXiv 2501.01005, section 3.1).
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch.nn.functional import pad

HALVES = (torch.float16, torch.bfloat16)
LARGEST_HEAD, HEAD_STEP = 256, 8  # head sizes that CUDA kernels take: multiples of the second
MASK_STEP = 16  # elements to which the rows of a mask are aligned for CUDA kernels

Part = tuple[torch.Tensor, torch.Tensor]  # [1, H, Q, D], and its log-sum-exp [1, H, Q] in float32 or float64

aten = torch.ops.aten


class Kernels(Protocol):
    """One library's attention with log-sum-exp."""

    @property
    def name(self) -> str:
        """As in statistics."""

    def takes(self, query: torch.Tensor, value: torch.Tensor) -> bool:
        """Whether it computes this device, type and head size."""

    def partial(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        scale: float | None,
    ) -> Part:
        """Attention to these keys.

        Args:
            query: [1, H, Q, D]
            key, value: [1, H, K, D]
            mask: additive, [1, 1, Q, K]; `None` hides nothing.
            scale: of the scores; `None` for D ** -0.5.
        """


class HostKernels:
    """PyTorch's flash attention for CPUs."""

    name = "split"

    def takes(self, query: torch.Tensor, value: torch.Tensor) -> bool:
        return query.device.type == "cpu" and query.is_floating_point() and query.shape[3] == value.shape[3]

    def partial(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        scale: float | None,
    ) -> Part:
        found: Part = aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, attn_mask=mask, scale=scale)
        return found


class EfficientKernels:
    """PyTorch's memory-efficient attention for CUDA, which takes any mask."""

    name = "efficient"
    types: tuple[torch.dtype, ...] = (torch.float32, *HALVES)

    def takes(self, query: torch.Tensor, value: torch.Tensor) -> bool:
        size = query.shape[3]
        fits = size == value.shape[3] <= LARGEST_HEAD and size % HEAD_STEP == 0
        return query.device.type == "cuda" and query.dtype in self.types and fits

    def partial(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        scale: float | None,
    ) -> Part:
        if mask is None:
            return self.unmasked(query, key, value, scale)
        bias = aligned(mask).expand(-1, query.shape[1], -1, -1)
        found, sums, *_ = aten._scaled_dot_product_efficient_attention(query, key, value, bias, True, scale=scale)
        return found, sums.narrow(2, 0, query.shape[2])  # which is as long as a multiple of 32

    def unmasked(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None) -> Part:
        found, sums, *_ = aten._scaled_dot_product_efficient_attention(query, key, value, None, True, scale=scale)
        return found, sums.narrow(2, 0, query.shape[2])


class FlashKernels(EfficientKernels):
    """PyTorch's own flash attention for CUDA; the tree, which it has no mask for, by the memory-efficient one."""

    name = "flash"
    types = HALVES

    def unmasked(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None) -> Part:
        found, sums, *_ = aten._scaled_dot_product_flash_attention(query, key, value, scale=scale)
        return found, sums.narrow(2, 0, query.shape[2])


def aligned(mask: torch.Tensor) -> torch.Tensor:
    """The mask, in memory whose rows begin at multiples of `MASK_STEP` elements."""
    keys = mask.shape[3]
    return pad(mask, (0, -keys % MASK_STEP)).narrow(3, 0, keys)


def with_sinks(part: Part, sinks: torch.Tensor) -> Part:
    """The part with one more key of each head, which has a score and no value.

    Args:
        sinks: [1, H, Q], or what broadcasts to it.
    """
    found, sums = part
    sinks = sinks.to(sums)
    kept = torch.sigmoid(sums - sinks).unsqueeze(-1)
    return (found.to(kept) * kept).to(found.dtype), torch.logaddexp(sums, sinks)


def merged(one: Part, other: Part) -> torch.Tensor:
    """[1, H, Q, D]: attention to the keys of both parts."""
    (first, first_sum), (second, second_sum) = one, other
    weight = torch.sigmoid(second_sum - first_sum).unsqueeze(-1)
    return torch.lerp(first.to(weight), second.to(weight), weight).to(first.dtype)
