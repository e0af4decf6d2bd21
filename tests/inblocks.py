"""Weights in blocks, as oneDNN lays them where it packs bfloat16, and as lade does where it packs none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from lade.weights import blocks, packed
from lade.weights.onednn import packs

ONEDNN, OWN = "oneDNN's", "own"


@contextmanager
def own_blocks() -> Iterator[None]:
    """As on a machine where oneDNN packs no bfloat16."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (blocks, packed):
            patch.setattr(module, "packs", lambda dtype: dtype is not torch.bfloat16 and packs(dtype))
        yield
