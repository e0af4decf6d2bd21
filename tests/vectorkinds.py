"""Machines that machine code is tried for, and the arrays that its loops read."""

import numpy as np

# Numbers of a vector, and registers for vectors.
KINDS = {"sse": (4, 16), "avx": (8, 16), "avx-512": (16, 32), "neon": (4, 32)}
# What stands in an array: numbers, their bits, or those of bfloat16, which are their upper halves.
DTYPES = {"numbers": np.float32, "bits": np.uint32, "short": np.uint16}


def stored(numbers: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """The array, and the numbers that it stands for."""
    rounded = numbers.astype(np.float32)
    bits = rounded.view(np.uint32)
    if dtype == "short":
        kept = (bits >> 16).astype(np.uint16)
        return kept.ravel(), (kept.astype(np.uint32) << 16).view(np.float32)
    return (bits if dtype == "bits" else rounded).ravel(), rounded
