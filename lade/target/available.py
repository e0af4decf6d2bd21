"""The ways of attention that a model may use: by how it was loaded, by its device and by what is installed."""

from __future__ import annotations

import logging

import torch

from lade.kernels import available as kernels
from lade.target import own
from lade.target.choice import Ways
from lade.target.flashattn import installed
from lade.target.launches import Kernel
from lade.target.looped import Looped
from lade.target.partial import EfficientKernels, FlashKernels, HostKernels, Kernels
from lade.target.ways import SHORTEST_PREFIX, Defined, Masked, Split, Together

FLASH = "flash_attention_"  # begins the names of implementations that are flash-attn, followed by its version
OTHERS = "lade: {} USE_FLASH takes PyTorch's own flash attention."

_log = logging.getLogger(__name__)
# Not cuDNN's: it makes a plan for every number of keys, and a prefix grows with every step.
_own: tuple[Kernels, ...] = (HostKernels(), FlashKernels(), EfficientKernels())
_usual, _flash = ([Split(each, shortest) for each in _own] for shortest in (SHORTEST_PREFIX, 1))
_rules = (Kernel(), Together(), Masked(), Defined())
_noticed: set[str] = set()


def ways_of(implementation: str, device: torch.device, flash: bool = False) -> Ways:
    """The ways for a model.

    Args:
        implementation: of attention, that the model was loaded with.
        flash: whether flash attention is asked for: flash-attn's if it is installed, else PyTorch's own, which the
            log says once. On a CPU all ways are PyTorch's flash attention, so their times decide.
    """
    loaded = implementation.startswith(FLASH)
    package = installed(str(device), int(implementation.removeprefix(FLASH)) if loaded else None)
    if not loaded and not flash:
        given = () if package is None else (Split(package, SHORTEST_PREFIX),)
        if implementation == own.NAME and kernels.runs(device):
            return Ways(_rules, timed=False)
        return Ways((*_rules, *given, *_usual, Looped()))
    if package is None:
        _notice(device)
        return Ways((*_rules, *_flash)) if device.type == "cpu" else Ways((*_flash, *_rules), timed=False)
    return Ways((Split(package, 1), *_flash, *_rules), timed=False)


def _notice(device: torch.device) -> None:
    reason = "flash-attn is not installed." if device.type == "cuda" else "flash-attn needs a CUDA device."
    if reason not in _noticed:
        _noticed.add(reason)
        _log.warning(OTHERS.format(reason))
