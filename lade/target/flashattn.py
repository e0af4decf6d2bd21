"""The kernels of the flash-attn packages (versions 2, 3 and 4), for the prefix; PyTorch's own compute the tree.

Knows the packages' public functions, which are imported when they are first asked for; no model.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any

import torch

from lade.target.partial import HALVES, LARGEST_HEAD, EfficientKernels, HostKernels, Kernels, Part

PACKAGES = {3: "flash_attn_interface", 2: "flash_attn", 4: "flash_attn.cute"}  # in the order of preference
DEVICES: tuple[str, ...] = ("cuda",)
TYPES: tuple[torch.dtype, ...] = HALVES

Function = Callable[..., Any]


class FlashAttention:
    """The kernels of one package.

    Args:
        version: of the package, a key of `PACKAGES`.
        function: its `flash_attn_func`.
    """

    def __init__(self, version: int, function: Function) -> None:
        self.version, self.name = version, f"flash-attn {version}"
        self._function = function
        self._options = _options(version, function)
        self._trees: dict[str, Kernels] = {"cuda": EfficientKernels(), "cpu": HostKernels()}

    def takes(self, query: torch.Tensor, value: torch.Tensor) -> bool:
        same = query.shape[3] == value.shape[3] <= LARGEST_HEAD
        return query.device.type in DEVICES and query.dtype in TYPES and same and query.shape[3] % 8 == 0

    def partial(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        scale: float | None,
    ) -> Part:
        if mask is not None:
            return self._trees[query.device.type].partial(query, key, value, mask, scale)
        # [1, Q, H, D]: the same memory, seen in the packages' order of axes
        states = (each.transpose(1, 2) for each in (query, key, value))
        found, sums, *_ = self._function(*states, softmax_scale=scale, causal=False, **self._options)
        return found.transpose(1, 2), sums.narrow(2, 0, query.shape[2])


def _options(version: int, function: Function) -> dict[str, Any]:
    """The arguments by which a version's function returns the log-sum-exp, and splits long prefixes."""
    taken = inspect.signature(function).parameters
    wanted = {"return_lse": True, "return_attn_probs": True}
    options: dict[str, Any] = {name: value for name, value in wanted.items() if name in taken}
    if "num_splits" in taken and version > 2:
        options["num_splits"] = 0  # as many as pay: few queries do not fill a device
    return options


@functools.lru_cache(maxsize=8)
def installed(device: str, preferred: int | None = None) -> FlashAttention | None:
    """The kernels of an installed package that run on a device; `None` if there are none.

    Args:
        preferred: the version that is tried first.
    """
    order = sorted(PACKAGES, key=lambda version: version != preferred)
    return next((found for version in order if (found := _loaded(version, device)) is not None), None)


def _loaded(version: int, device: str) -> FlashAttention | None:
    if torch.device(device).type not in DEVICES:
        return None
    try:
        kernels = FlashAttention(version, importlib.import_module(PACKAGES[version]).flash_attn_func)
        states = torch.zeros(1, 1, 8, 64, dtype=TYPES[0], device=device)
        kernels.partial(states, states, states, None, None)
    except Exception:  # noqa: BLE001 - not installed, not built for this torch, or not for this device
        return None
    return kernels
