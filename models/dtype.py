"""The dtype of a model that is loaded to the CPU where none is asked for. Reads a configuration and no weights."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lade.base.importing import IMPORTING
from lade.facts import memory
from lade.facts.products import slow_on_cpu
from lade.models.loader import loader_for

if TYPE_CHECKING:
    import torch

PART = 4  # weights in float32 may take one part in so many of the machine's memory
TAKEN = (
    "lade: {name} is loaded in float32, as torch is slow on this CPU in {own}, the checkpoint's dtype; "
    'dtype="{own}" or --dtype {own} keeps it'
)
KEPT = (
    "lade: {name} is loaded in {own}, the checkpoint's dtype, though torch is slow in it on this CPU, as {size:.1f} GB "
    'in float32 are too much for its memory; dtype="float32" or --dtype float32 takes it nevertheless'
)

_log = logging.getLogger(__name__)
_noticed: set[str] = set()


def default_dtype(source: str, cache_dir: str | Path | None = None) -> torch.dtype | None:
    """float32 for a checkpoint in half precision where torch has no fast products in it, else `None`: its own.

    The weights in float32 must take at most a quarter of the machine's memory, which is the same in all processes, and
    no more than is available. Quantised checkpoints, and those whose configuration names no dtype, keep their own. The
    log says once per model what was taken and how to ask for the other.
    """
    import torch

    if not any(map(slow_on_cpu, (torch.bfloat16, torch.float16))):
        return None  # whatever the checkpoint's is: its configuration is not read once more
    with IMPORTING:
        from transformers import AutoConfig

    config = AutoConfig.from_pretrained(source, cache_dir=cache_dir)
    own = getattr(config, "dtype", None)
    if not isinstance(own, torch.dtype) or getattr(config, "quantization_config", None) or not slow_on_cpu(own):
        return None
    size = weights(config) * torch.float32.itemsize
    fits = size <= min(memory.total() // PART, memory.available())
    _notice(source, own, size, fits)
    return torch.float32 if fits else None


def weights(config: Any) -> int:
    """How many weights the model of a configuration has."""
    import torch

    with torch.device("meta"):
        model = loader_for(config).from_config(config)
    return sum(weight.numel() for weight in model.parameters())


def _notice(source: str, own: torch.dtype, size: int, fits: bool) -> None:
    name = Path(source).name if Path(source).is_dir() else source
    text = (TAKEN if fits else KEPT).format(name=name, own=str(own).removeprefix("torch."), size=size / 1e9)
    if text not in _noticed:
        _noticed.add(text)
        _log.warning(text)
