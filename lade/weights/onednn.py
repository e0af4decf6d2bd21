"""What torch has of oneDNN for linear layers: weights in oneDNN's own layout, and products with them.

Knows no layer and no model.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import torch

from lade.facts.products import told

ROWS = 64  # of the products, as oneDNN asks; its layouts for 16 to 512 are equally fast at 1 to 1,024 rows
ALONE: Any = ("none", [], "")  # a product with no function behind it
READING = "data_ptr", "_nbytes", "_get_mkldnn_serialized_md"  # releases of torch differ in what they have
_ops: Any = torch.ops.mkldnn


def packs(dtype: torch.dtype) -> bool:
    """Whether oneDNN packs weights of a dtype on this machine."""
    build: Any = torch.backends.mkldnn
    if not build.is_available() or not hasattr(_ops, "_reorder_linear_weight"):
        return False
    return dtype is torch.float32 or told(dtype) is True


def packed(weight: torch.Tensor) -> torch.Tensor:
    """The same weight in oneDNN's layout."""
    found: torch.Tensor = _ops._reorder_linear_weight.default(weight, ROWS)
    return found


def product(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """[..., N] of [..., K] and a packed [N, K] weight of the same dtype."""
    found: torch.Tensor = _ops._linear_pointwise.default(input, weight, bias, *ALONE)
    return found


def readable() -> bool:
    """Whether this release of torch tells where a packed weight lies, and how."""
    return all(hasattr(_ops, name) for name in READING)


def layout(weight: torch.Tensor) -> bytes:
    """What oneDNN keeps of it: sizes and steps as int64, and what stands between them."""
    described: bytes = _ops._get_mkldnn_serialized_md.default(weight).numpy().tobytes()
    return described


def memory(weight: torch.Tensor) -> np.ndarray:
    """Flat uint16 of a packed bfloat16 weight; who reads it keeps the weight."""
    kind = ctypes.c_uint16 * (_ops._nbytes.default(weight) // ctypes.sizeof(ctypes.c_uint16))
    found = np.ctypeslib.as_array(kind.from_address(_ops.data_ptr.default(weight)))
    return found.view(np.uint16)  # of ctypes' numbers, which name their byte order, a memoryview reads none
