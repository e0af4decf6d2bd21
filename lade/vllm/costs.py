"""The costs of vLLM's steps in lade's cache folder: one file per kind of model, machine and way to run it."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch

from lade.pace import costfile
from lade.pace.shared import SharedCost


def shared_cost(config: Any, version: str) -> SharedCost:
    """Those of a `VllmConfig`."""
    description = describe(config, version)
    return SharedCost(costfile.read_costs(description), costfile.keeper_of(description))


def describe(config: Any, version: str) -> dict[str, str]:
    """What the costs are valid for."""
    model, parallel = config.model_config, config.parallel_config
    text = json.dumps(model.hf_config.to_dict(), sort_keys=True, default=str)
    ways = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
    return {
        "kind": costfile.KIND,
        "format": costfile.FORMAT,
        "engine": f"vllm {version}",
        "model": hashlib.blake2b(text.encode(), digest_size=8).hexdigest(),
        "device": costfile.device_name(torch.device(config.device_config.device_type)),
        "dtype": str(model.dtype),
        "quantization": str(model.quantization),
        "eager": str(model.enforce_eager),
        "parallel": " ".join(str(getattr(parallel, name)) for name in ways),
        "threads": str(torch.get_num_threads()),
        "torch": torch.__version__,
    }
