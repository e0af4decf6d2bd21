"""Weights that are sharded over processes: torch's `DTensor`, recognised without importing its module.

Tensor parallelism (`tp_plan` of transformers) shards a model so that its forward takes and returns whole tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def is_sharded(weight: Any) -> bool:
    return hasattr(weight, "device_mesh")


def local(weight: Any) -> torch.Tensor:
    """The part that this process holds; a whole weight itself."""
    return weight.to_local() if is_sharded(weight) else weight


def gathered(weight: Any) -> torch.Tensor:
    """The whole weight. Collective where it is sharded: all processes must call it, in the same order."""
    return weight.full_tensor() if is_sharded(weight) else weight


def tensor_parallel(model: Any) -> int:
    """The processes that compute a model together by its `tp_plan`; 1 where one does alone."""
    size = getattr(model, "_tp_size", None)
    return size if isinstance(size, int) and size > 1 else 1


def undivided_heads(model: Any) -> str | None:
    """The heads that the `tp_plan` shards and the processes cannot divide among them, e.g. `num_attention_heads=4`."""
    config, size, plan = model.config.get_text_config(decoder=True), tensor_parallel(model), model.tp_plan or {}
    sharded = {name.rpartition(".")[2] for name, way in plan.items() if way == "colwise"}
    for projection, heads in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
        number = getattr(config, heads, None)
        if projection in sharded and isinstance(number, int) and number % size:
            return f"{heads}={number}"
    return None
