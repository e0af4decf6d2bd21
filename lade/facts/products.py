"""Whether torch multiplies matrices of a dtype fast on this machine's CPU. Knows no model.

Without them torch computes token by token: with SmolLM2-135M on an AMD EPYC with AVX2, 16 tokens take 10 times as long
as one in bfloat16, and 2.1 times in float32 (`benchmarks/dtypes.py`). oneDNN says which it has: on x86, bfloat16 needs
AVX-512 or newer, and float16 more. What a "no" means on other architectures was not measured.
"""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

X86 = ("x86_64", "AMD64")  # as Linux and macOS, and as Windows name it
QUESTIONS = {"bfloat16": "_is_mkldnn_bf16_supported", "float16": "_is_mkldnn_fp16_supported"}


def slow_on_cpu(dtype: torch.dtype) -> bool:
    """Whether torch has no fast products of this dtype here; False where that is not known."""
    return platform.machine() in X86 and told(dtype) is False


def told(dtype: torch.dtype) -> bool | None:
    """What torch says of its fast products of a dtype in half precision; `None` where it says nothing."""
    import torch

    build: Any = torch.backends.mkldnn
    question = QUESTIONS.get(str(dtype).removeprefix("torch."))
    if question is None or not build.is_available():
        return None
    answer = getattr(torch.ops.mkldnn, question, None)  # releases of torch differ in what they have
    return None if answer is None else bool(answer())
