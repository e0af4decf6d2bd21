"""Loading with quantised weights: one row per format in `QUANTS`, with checks before and after loading.

transformers imports bitsandbytes and torchao when a row is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from lade.base.shown import first_line, invalid
from lade.facts.precision import is_quantised

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

EXTRA = "pip install 'lade-decoding[quant]'"


@dataclass(frozen=True)
class Quantisation:
    """A quantisation format.

    Attributes:
        package: the package that must be installed.
        devices: torch device types that have the kernels.
        config: dtype -> the `quantization_config` of `from_pretrained`.
        dtypes: names of the dtypes that weights without quantisation may have; `None` for any.
    """

    package: str
    devices: tuple[str, ...]
    config: Callable[[torch.dtype], Any]
    dtypes: tuple[str, ...] | None = None


def _nf4(dtype: torch.dtype) -> Any:
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype)


def _int8(dtype: torch.dtype) -> Any:
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(load_in_8bit=True)


def _torchao_int8(dtype: torch.dtype) -> Any:
    from torchao.quantization import Int8WeightOnlyConfig
    from transformers import TorchAoConfig

    return TorchAoConfig(Int8WeightOnlyConfig())


def _int4(dtype: torch.dtype) -> Any:
    from torchao.quantization import Int4WeightOnlyConfig
    from transformers import TorchAoConfig

    return TorchAoConfig(Int4WeightOnlyConfig(group_size=128, int4_packing_format="tile_packed_to_4d"))


EVERYWHERE = ("cpu", "cuda", "xpu")
QUANTS = {
    "nf4": Quantisation("bitsandbytes", EVERYWHERE, _nf4, ("float32", "bfloat16", "float16")),
    "int8": Quantisation("bitsandbytes", EVERYWHERE, _int8, ("float32", "bfloat16", "float16")),
    "torchao-int8": Quantisation("torchao", EVERYWHERE, _torchao_int8, ("float32", "bfloat16", "float16")),
    "int4": Quantisation("torchao", ("cuda",), _int4, ("bfloat16",)),
}


def check_quant(quant: str, device: torch.device) -> None:
    """Check a format on a device, before any file is read.

    Raises:
        ValueError: `quant` is unknown, or the device has no kernels for it.
        ImportError: its package is missing.
    """
    if not isinstance(quant, str) or quant not in QUANTS:
        raise invalid("quant", f"one of {', '.join(QUANTS)}, or None", quant)
    row = QUANTS[quant]
    if device.type not in row.devices:
        here = [name for name, other in QUANTS.items() if device.type in other.devices]
        allowed = f"one of {', '.join(here)}, or None" if here else "None"
        raise invalid("quant", f"{allowed} on device={str(device)!r}", quant)
    missing = [package for package in (row.package, "accelerate") if find_spec(package) is None]
    if missing:
        raise ImportError(f"quant={quant!r} needs {' and '.join(missing)}: {EXTRA}")


def quantised_arguments(quant: str, config: Any, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    """Arguments of `from_pretrained` that load quantised weights directly to the device.

    Args:
        config: the checkpoint's.
        dtype: of the weights that are not quantised.

    Raises:
        ValueError: the checkpoint is quantised already, or the format does not support the dtype.
    """
    if getattr(config, "quantization_config", None) is not None:
        raise invalid("quant", "None for a checkpoint that is quantised already", quant)
    row, name = QUANTS[quant], str(dtype).removeprefix("torch.")
    if row.dtypes is not None and name not in row.dtypes:
        raise invalid("dtype", f"one of {', '.join(row.dtypes)} with quant={quant!r}", name)
    return {"quantization_config": row.config(dtype), "device_map": {"": device}}


def check_quantised(model: PreTrainedModel, quant: str) -> None:
    """ValueError where no weight was quantised, or the kernels do not support the model's sizes."""
    import torch

    case = f"quant={quant!r} on device={str(model.device)!r}"
    if not is_quantised(model):
        raise ValueError(f"{case}: no weight of this model has a size that can be quantised so")
    try:
        with torch.no_grad():
            model(input_ids=torch.zeros(1, 2, dtype=torch.long, device=model.device), use_cache=False)
    except (AssertionError, NotImplementedError, RuntimeError, ValueError) as error:
        raise ValueError(f"{case}: its kernels do not support this model ({first_line(error)})") from error
