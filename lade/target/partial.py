"""Attention to some of a row's keys, with the log-sum-exp of its scores, by which two such parts become the whole.

Knows PyTorch's kernels, no model and no tree. B rows, H heads, Q queries of a head, K keys, D head size.

The softmax over the keys of two parts is the mean of the parts' results, weighted with exp(log-sum-exp)
(arXiv 2501.01005, section 3.1).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

Part = tuple[torch.Tensor, torch.Tensor]  # [B, H, Q, D], and its log-sum-exp [B, H, Q] in float32 or float64


class Kernels(Protocol):
    """One library's attention with log-sum-exp."""

    name: str

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
        return _flash_for_cpu(query, key, value, attn_mask=mask, scale=scale)


_flash_for_cpu: Callable[..., Part] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def merged(one: Part, other: Part) -> torch.Tensor:
    """[B, H, Q, D]: attention to the keys of both parts."""
    (first, first_sum), (second, second_sum) = one, other
    weight = torch.sigmoid(second_sum - first_sum).unsqueeze(-1)
    return torch.lerp(first.to(weight), second.to(weight), weight).to(first.dtype)
