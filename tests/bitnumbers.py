"""What the bits that loops write stand for."""

import numpy as np
import torch


def tensor_of(bits: np.ndarray) -> torch.Tensor:
    """The flat tensor of bits, in the same memory; the inverse of `lade.base.bits.bits_of`."""
    if bits.dtype == np.uint32:
        return torch.from_numpy(bits.view(np.float32))
    return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)
