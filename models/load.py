"""Loading a causal language model and its tokenizer: a shipped or pulled model, a local folder, or a hub name.

Arguments are checked before any file is read.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lade.base.arguments import check_path, check_switch
from lade.base.importing import IMPORTING
from lade.base.shown import first_line, invalid
from lade.files.cachecontent import mark_used
from lade.models.device import as_device
from lade.models.dtype import default_dtype
from lade.models.hub import on_hand
from lade.models.loader import loader_for
from lade.models.pulled import PULLABLE, is_pulled, not_pulled, pulled_folder
from lade.models.quant import check_quant, check_quantised, quantised_arguments
from lade.models.shipped import FOLDER, NAMES, TARGET
from lade.models.whole import whole

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
SOURCES = (
    f"a folder, a hub name (owner/model), a model that ships ({', '.join(NAMES)}) "
    f"or one that `lade pull` fetches ({', '.join(PULLABLE)})"
)
DTYPES = ("float32", "bfloat16", "float16", "float64")


def load(
    path_or_name: str | Path | None = None,
    *,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    attn_implementation: str | None = None,
    cache_dir: str | Path | None = None,
    warm: bool = False,
    quant: str | None = None,
    pack: bool | None = False,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a model and its tokenizer.

    Args:
        path_or_name: a folder, a hub name, a shipped model (lade-code-8M, the default; its draft model
            lade-code-8M-draft; stories260K) or a pulled one (smollm2-135m). A folder with such a name comes first. The
            shipped models end a text with their BOS token; as the first token of a prompt it does not end it.
        dtype: float32, bfloat16, float16 or float64; `None` for the checkpoint's own, on a CPU where torch is slow in
            that for float32 if it fits into memory: the log says so.
        device: the CPU by default.
        attn_implementation: the name of transformers' attention implementation, or "lade" for lade's own.
        cache_dir: folder of hub downloads.
        warm: compute the model's warm table, or load it if it is saved (`lade.warm_up`).
        quant: quantise the weights: "nf4" or "int8" (bitsandbytes), "torchao-int8", or "int4" (torchao, on CUDA).
        pack: pack weights on the CPU for fast products (`lade.pack_weights`). `None`: unless decoding multiplies them
            faster as they lie, by lade's loops for few tokens: those of fused layers in float32. It does not where
            they can be packed in 16 bits, and machine code is compiled that multiplies these.

    Returns:
        The model in eval mode, and its tokenizer.

    Raises:
        ValueError: an argument is wrong, or `quant` does not go with the device, dtype or model.
        FileNotFoundError: the path has no model, or the model is not pulled.
        OSError: the hub does not have the name.
        ImportError: the package for `quant` is missing.
    """
    check_switch("warm", warm)
    if pack is not None:
        check_switch("pack", pack)
    source = model_source(path_or_name)
    weights = None if dtype is None else as_dtype(dtype)
    place = as_device("cpu" if device is None else device)
    _check(attn_implementation, cache_dir)
    if quant is not None:
        check_quant(quant, place)
    source = here(source, cache_dir)
    with whole(source, "tokenizer"):
        tokenizer = _tokenizer(source, cache_dir)
    if attn_implementation == "lade":
        _register()
    how = {"attn_implementation": attn_implementation, "cache_dir": cache_dir}
    with whole(source, "configuration or weights"):
        if weights is None and quant is None and place.type == "cpu":
            weights = default_dtype(source, cache_dir)
        model = _plain(source, weights, place, how) if quant is None else _quantised(source, quant, weights, place, how)
    _name_pad_token(model)
    model.eval()
    if pack or (pack is None and (_packs_in_16_bits(model) or not _has_loops(model))):
        _pack(model)
    if warm:
        _warm_up(model, tokenizer)
    return model, tokenizer


def load_tokenizer(path_or_name: str | Path | None = None) -> PreTrainedTokenizerBase:
    """The tokenizer of a model alone; argument and errors as of `load`."""
    source = here(model_source(path_or_name), None)
    with whole(source, "tokenizer"):
        return _tokenizer(source, None)


def _check(attn_implementation: Any, cache_dir: Any) -> None:
    if attn_implementation is not None and not isinstance(attn_implementation, str):
        raise invalid("attn_implementation", "the name of an implementation, or None", attn_implementation)
    if cache_dir is not None:
        check_path("cache_dir", cache_dir)


def _register() -> None:
    with IMPORTING:
        from lade.target import own

    own.install()


def here(source: str, cache_dir: str | Path | None) -> str:
    """What transformers loads: a folder, or the name of a hub that answers."""
    if not Path(source).is_dir():
        return on_hand(source, cache_dir)
    mark_used(Path(source))
    return source


def _tokenizer(source: str, cache_dir: str | Path | None) -> PreTrainedTokenizerBase:
    with IMPORTING:
        from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(source, cache_dir=cache_dir)


def _warm_up(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    with IMPORTING:
        from lade.memory.warm.warming import warm_up

    warm_up(model, tokenizer=tokenizer)


def _has_loops(model: PreTrainedModel) -> bool:
    """Whether loops multiply few tokens with the model's plain weights, or will as soon as they are compiled."""
    with IMPORTING:
        from lade.drafters.compiling import possible
        from lade.target.attention import can_pack
        from lade.target.fused.plan import reads_plain
        from lade.target.verdicts import implementation_of

    return possible() and can_pack(implementation_of(model)) and reads_plain(model)


def _packs_in_16_bits(model: PreTrainedModel) -> bool:
    """Whether there is machine code that multiplies such weights, and the model's are all of that kind."""
    with IMPORTING:
        from torch import nn

        from lade.drafters.compiling import is_compiled
        from lade.weights.packed import can_pack, is_short

    layers = [layer for layer in model.modules() if type(layer) is nn.Linear]
    return is_compiled() and all(can_pack(layer, short=True) and is_short(layer.weight) for layer in layers)


def _pack(model: PreTrainedModel) -> None:
    with IMPORTING:
        from lade.models.packing import pack_weights

    pack_weights(model)


def _plain(source: str, dtype: torch.dtype | None, place: torch.device, how: dict[str, Any]) -> PreTrainedModel:
    loader = loader_for(_configuration(source, how))
    model: PreTrainedModel = loader.from_pretrained(source, dtype=dtype or "auto", **how)
    return model.to(place)


def _configuration(source: str, how: dict[str, Any]) -> Any:
    with IMPORTING:
        from transformers import AutoConfig

    return AutoConfig.from_pretrained(source, cache_dir=how["cache_dir"])


def _quantised(
    source: str, quant: str, dtype: torch.dtype | None, place: torch.device, how: dict[str, Any]
) -> PreTrainedModel:
    import torch

    config = _configuration(source, how)
    dtype = dtype or config.get_text_config().dtype or torch.float32
    arguments = quantised_arguments(quant, config, dtype, place)
    try:
        model: PreTrainedModel = loader_for(config).from_pretrained(source, dtype=dtype, **how, **arguments)
    except (ImportError, NotImplementedError, RuntimeError, ValueError) as error:
        raise ValueError(f"quant={quant!r} on device={str(place)!r}: {first_line(error)}") from error
    check_quantised(model, quant)
    return model


def model_source(path_or_name: str | Path | None) -> str:
    """The model's folder, also of a shipped or pulled model, or a hub name."""
    if path_or_name is None:
        path_or_name = FOLDER / TARGET
    if not isinstance(path_or_name, str | Path):
        raise invalid("path_or_name", SOURCES, path_or_name)
    try:
        folder = Path(path_or_name).expanduser()
    except RuntimeError as error:  # there is no such user
        raise _missing(f"{SOURCES}; {error}", path_or_name) from error
    if path_or_name != "" and folder.is_dir():  # an empty text would be the working folder
        if not (folder / "config.json").is_file():
            raise _missing("a folder with a model, which has a config.json", path_or_name)
        return str(folder)
    if path_or_name in NAMES:
        return str(FOLDER / path_or_name)
    if path_or_name in PULLABLE:
        return _pulled(str(path_or_name))
    if isinstance(path_or_name, Path) or folder.exists() or not _may_be_on_the_hub(path_or_name):
        raise _missing(SOURCES, path_or_name)
    return path_or_name


def _pulled(name: str) -> str:
    if not is_pulled(name):
        raise _missing(f"a model on this machine; {not_pulled(name)}", name)
    return str(pulled_folder(name))


def _missing(allowed: str, path_or_name: str | Path) -> FileNotFoundError:
    return FileNotFoundError(f"path_or_name must be {allowed}, got {str(path_or_name)!r}")


def _may_be_on_the_hub(name: str) -> bool:
    """Whether the name is well-formed and not a misspelt name of a shipped or pullable model."""
    return bool(HUB_NAME.fullmatch(name)) and not get_close_matches(name, [*NAMES, *PULLABLE], cutoff=0.8)


def as_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """A dtype from its name; ValueError where it is not in `DTYPES`."""
    import torch

    name = str(dtype).removeprefix("torch.") if isinstance(dtype, str | torch.dtype) else None
    if name is None or name not in DTYPES:
        raise invalid("dtype", f"one of {', '.join(DTYPES)}", name or dtype)
    found: torch.dtype = getattr(torch, name)
    return found


def _name_pad_token(model: PreTrainedModel) -> None:
    """Set a missing pad token to the EOS token, as `generate` would with a warning per call."""
    settings = model.generation_config
    if settings.pad_token_id is None and settings.eos_token_id is not None:
        eos = settings.eos_token_id
        settings.pad_token_id = eos[0] if isinstance(eos, list) else eos
