"""Costs of steps in the user's cache folder, one file per kind of model, device and way to run it.

The kind of a model is its configuration and the shapes and dtypes of its weights. Their values make no difference to
the time of a step, and reading them takes longer than measuring costs. A file that is broken or for something else is
ignored with a warning.
"""

from __future__ import annotations

import hashlib
import math
import platform
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lade.base.shown import invalid
from lade.base.wrappers import unwrapped
from lade.facts.fingerprint import configuration_key
from lade.facts.sharding import tensor_parallel
from lade.files.cachecontent import mark_used
from lade.files.cachefolder import CacheWarning, cache_folder
from lade.files.regularfile import MEBIBYTE, AbsentFileError
from lade.files.safefile import read, write
from lade.pace.cost import COST, CostPolicy, Costs, Key, StepCost
from lade.pace.knots import KNOTS
from lade.pace.roofline import prior_for
from lade.weights.packing import packing_of

KIND, FORMAT = "cost", "1"
PLAIN, FUSED, STATIC = "", "fused", "static"  # steps: with fused decoder layers, or of fixed shapes
LARGEST_FILE = MEBIBYTE
LARGEST_LOG = 20.0  # of a cost: no step costs e**20 times another
CPUINFO = Path("/proc/cpuinfo")


def describe(model: Any, processes: int = 1, steps: str = PLAIN) -> dict[str, str]:
    """What the costs are valid for: the file's metadata.

    Args:
        processes: that share the draft trees.
        steps: how they are computed.
    """
    model = unwrapped(model)
    size = max(tensor_parallel(model), processes)
    rare = ({"processes": str(size)} if size > 1 else {}) | ({"steps": steps} if steps else {})
    rare |= {"weights": packing} if (packing := packing_of(model)) else {}
    return rare | {
        "kind": KIND,
        "format": FORMAT,
        "model": configuration_key(model),
        "device": device_name(model.device),
        "dtype": str(model.dtype),
        "attention": str(getattr(model.config, "_attn_implementation", None)),
        "threads": str(torch.get_num_threads()),
        "torch": torch.__version__,
    }


def cost_file(model: Any) -> Path:
    """Where the costs of this model, as it is run now, are stored."""
    return _path(describe(model))


def load(model: Any, processes: int = 1, steps: str = PLAIN) -> StepCost:
    """Costs that start from what an earlier process measured, or from the prior if there is no usable file."""
    return read_costs(describe(model, processes, steps), policy_for(model))


def read_costs(description: dict[str, str], policy: CostPolicy = COST) -> StepCost:
    """The same for steps that are described as in `describe`."""
    try:
        path = _path(description)
        found = StepCost(_parsed(*read(path, LARGEST_FILE), description), policy)
        mark_used(path)
        return found
    except AbsentFileError:
        return StepCost(policy=policy)
    except (OSError, ValueError) as error:
        warnings.warn(f"lade ignores the costs of steps in its cache folder: {error}", CacheWarning, stacklevel=2)
        return StepCost(policy=policy)


def policy_for(model: Any) -> CostPolicy:
    """How costs are learned where this model lies."""
    return replace(COST, kalman=replace(COST.kalman, prior=prior_for(unwrapped(model))))


def keeper(model: Any, processes: int = 1, steps: str = PLAIN) -> Callable[[Costs], None]:
    """A function that stores costs for later processes; the last write wins. It holds no reference to the model."""
    return keeper_of(describe(model, processes, steps))


def keeper_of(description: dict[str, str]) -> Callable[[Costs], None]:
    """The same for steps that are described as in `describe`."""
    return partial(_store, description)


def _store(description: dict[str, str], costs: Costs) -> None:
    tensors = {f"{rows}.{context}": torch.tensor(logs, dtype=torch.float64) for (rows, context), logs in costs.items()}
    try:
        write(_path(description), tensors, description, LARGEST_FILE)
    except OSError as error:
        warnings.warn(f"lade keeps the costs of steps in memory only: {error}", CacheWarning, stacklevel=2)


def _path(description: dict[str, str]) -> Path:
    name = hashlib.blake2b(repr(sorted(description.items())).encode(), digest_size=16).hexdigest()
    return cache_folder() / f"{KIND}{FORMAT}-{name}.safetensors"


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return device.type if device.type != "cpu" else f"{_cpu()} {torch.backends.cpu.get_cpu_capability()}"


def _cpu() -> str:
    """The model name of the processor, which Python gives on some systems only."""
    try:
        lines = CPUINFO.read_text(errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _parsed(
    tensors: dict[str, torch.Tensor], metadata: dict[str, str], description: dict[str, str]
) -> dict[Key, list[float]]:
    """[knots - 1] log costs per kind of step. ValueError if they are no costs, or for other steps than described."""
    differing = [name for name, value in description.items() if metadata.get(name) != value]
    if differing:
        theirs = ", ".join(f"{name}={metadata.get(name)}" for name in differing)
        raise ValueError(
            f"it is for {theirs}; this is {', '.join(f'{name}={description[name]}' for name in differing)}"
        )
    return {_key(name): _logs(tensor) for name, tensor in tensors.items()}


def _key(name: str) -> Key:
    rows, dot, context = name.partition(".")
    if not (dot and rows.isdecimal() and context.isdecimal() and max(len(rows), len(context)) <= 2):
        raise invalid("name of a tensor", "ROWS.CONTEXT, two numbers of at most 2 digits", name)
    return int(rows), int(context)


def _logs(tensor: torch.Tensor) -> list[float]:
    if tuple(tensor.shape) != (len(KNOTS) - 1,) or tensor.dtype != torch.float64:
        allowed = f"a float64 tensor of shape ({len(KNOTS) - 1},)"
        raise ValueError(f"costs must be {allowed}, got {tensor.dtype} of shape {tuple(tensor.shape)}")
    logs: list[float] = tensor.tolist()
    if not all(math.isfinite(value) and abs(value) <= LARGEST_LOG for value in logs):
        raise invalid("log costs", f"finite and from -{LARGEST_LOG:g} to {LARGEST_LOG:g}", logs)
    return logs
