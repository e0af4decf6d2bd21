"""Stand-ins for the flash-attn packages: their public functions, computed by PyTorch's flash attention for CPUs."""

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import modeling_flash_attention_utils as theirs

from lade.target import available, flashattn

NAMES = {2: "flash_attn", 3: "flash_attn_interface", 4: "flash_attn.cute"}
Calls = list[SimpleNamespace]


def install(patch: pytest.MonkeyPatch, *versions: int) -> Calls:
    """These versions are installed, and take what CPUs compute; returns what their functions are called with."""
    calls: Calls = []
    for version in NAMES:
        patch.setitem(sys.modules, NAMES[version], _module(version, calls) if version in versions else None)
        patch.setattr(theirs, f"is_flash_attn_{version}_available", lambda found=version in versions, **_: found)
    padding = ModuleType("flash_attn.bert_padding")
    padding.pad_input, padding.unpad_input = theirs._pad_input, theirs._unpad_input  # type: ignore[attr-defined]
    patch.setitem(sys.modules, "flash_attn.bert_padding", padding)
    for name in ("_flash_fn", "_flash_varlen_fn", "_flash_with_kvcache_fn"):
        patch.setattr(theirs, name, None)
    patch.setattr(flashattn, "DEVICES", ("cuda", "cpu"))
    patch.setattr(flashattn, "TYPES", (torch.float16, torch.float32, torch.float64))
    flashattn.installed.cache_clear()
    available._noticed.clear()
    return calls


def _module(version: int, calls: Calls) -> ModuleType:
    module: Any = ModuleType(NAMES[version])
    module.__path__ = []
    module.flash_attn_func = _function(version, calls)
    module.flash_attn_varlen_func = _by_sequence(module.flash_attn_func)
    module.flash_attn_with_kvcache = lambda *args, **kwargs: pytest.fail("not called")
    return module


def _by_sequence(function: Callable[..., Any]) -> Callable[..., Any]:
    """Sequences behind one another, as transformers gives padded prompts."""

    def varlen(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
    ) -> Tensor:
        parts = (x.split(at.diff().tolist()) for x, at in ((q, cu_seqlens_q), (k, cu_seqlens_k), (v, cu_seqlens_k)))
        found = [
            function(*(x[None] for x in each), softmax_scale=softmax_scale, causal=causal, window_size=window_size)
            for each in zip(*parts, strict=True)
        ]
        return torch.cat([x[0] if isinstance(x, tuple) else x for x in found], 1)[0]

    return varlen


def _function(version: int, calls: Calls) -> Callable[..., Any]:
    """With the arguments that lade and transformers use, under the names of the version."""

    def computed(q: Tensor, k: Tensor, v: Tensor, scale: float | None, causal: bool, window: Any, **more: Any) -> Any:
        calls.append(SimpleNamespace(query=q, key=k, causal=causal, **more))
        assert q.dim() == k.dim() == 4
        assert q.shape[0] == k.shape[0] == v.shape[0]
        assert causal or q.shape[0] == 1
        assert q.stride(3) == k.stride(3) == v.stride(3) == 1
        assert q.shape[2] % k.shape[2] == 0
        assert q.shape[3] == k.shape[3] == v.shape[3]
        states = (x.transpose(1, 2).repeat_interleave(q.shape[2] // x.shape[2], 1) for x in (q, k, v))
        hidden = _hidden(q.shape[1], k.shape[1], causal, window)
        mask = torch.zeros(hidden.shape, dtype=q.dtype).masked_fill_(hidden, torch.finfo(q.dtype).min)[None, None]
        out, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*states, attn_mask=mask, scale=scale)
        return out.transpose(1, 2), sums

    def two(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        deterministic: bool = False,
        return_attn_probs: bool = False,
    ) -> Any:
        found = computed(q, k, v, softmax_scale, causal, window_size)
        return (*found, None) if return_attn_probs else found[0]

    def three(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        num_splits: int = 1,
        deterministic: bool = False,
        return_attn_probs: bool = False,
    ) -> Any:
        found = computed(q, k, v, softmax_scale, causal, window_size, num_splits=num_splits)
        return found if return_attn_probs else found[0]

    def four(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int | None, int | None] = (None, None),
        softcap: float = 0.0,
        num_splits: int = 1,
        deterministic: bool = False,
        return_lse: bool = False,
    ) -> Any:
        out, sums = computed(q, k, v, softmax_scale, causal, window_size, num_splits=num_splits)
        return out, sums if return_lse else None

    return {2: two, 3: three, 4: four}[version]


def _hidden(queries: int, keys: int, causal: bool, window: Any) -> Tensor:
    """[Q, K] bool: aligned to the bottom right corner, as in the packages."""
    ahead = torch.arange(keys)[None] - (torch.arange(queries)[:, None] + keys - queries)
    hidden = ahead > 0 if causal else torch.zeros_like(ahead, dtype=torch.bool)
    left = window[0]
    return hidden if left is None or left < 0 else hidden | (-ahead > left)
