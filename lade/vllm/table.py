"""The warm table of a model that vLLM runs, which is no model of transformers.

Tables are named by the configuration and all weights of the transformers model (`lade.facts.fingerprint`). Both are
read here from the checkpoint: the model is built without weights, and they are hashed one by one as their files hold
them. Knows no vLLM.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from lade.files.cachefolder import cache_folder
from lade.files.jsonobject import read_object
from lade.files.regularfile import MEBIBYTE
from lade.memory.warm.file import PREFIX, load_named
from lade.memory.warm.warming import cached
from lade.memory.warmtable import WarmTable

INDEX, WHOLE = "model.safetensors.index.json", "model.safetensors"
LARGEST_INDEX = 64 * MEBIBYTE
DTYPES = (torch.float32, torch.bfloat16, torch.float16)

logger = logging.getLogger("vllm.lade")  # below vLLM's own, so that its settings hold


class Checkpoint:
    """The weights of a model without weights, in its order and its dtypes, each read when it is asked for.

    Args:
        model: on the meta device.
        files: name in the checkpoint -> safetensors file.
    """

    def __init__(self, model: Any, files: dict[str, Path]) -> None:
        self._weights, self._files = model.state_dict(keep_vars=True), files

    def values(self) -> Iterator[torch.Tensor]:
        """Raises ValueError where the checkpoint has no such weight, or one of another shape."""
        names: dict[int, list[str]] = {}
        for name, weight in self._weights.items():
            names.setdefault(id(weight), []).append(name)  # tied weights have several
        with ExitStack() as stack:
            opened = {path: stack.enter_context(safe_open(path, "pt")) for path in set(self._files.values())}
            for weight in self._weights.values():
                name = next((name for name in names[id(weight)] if name in self._files), None)
                if name is None:
                    raise ValueError(f"the checkpoint must hold {names[id(weight)][0]}")
                found = opened[self._files[name]].get_tensor(name)
                if found.shape != weight.shape:
                    raise ValueError(f"{name} must have the shape {tuple(weight.shape)}, got {tuple(found.shape)}")
                yield found.to(weight.dtype)


def table_of(source: str, revision: str | None, dtype: torch.dtype, trust: bool = False) -> WarmTable | None:
    """The table of a checkpoint, if lade's cache folder has one.

    Args:
        source: a folder, or the name of a model whose files were downloaded.
        dtype: that vLLM computes in; tables of the same weights in another one serve too, with a few other drafts.
        trust: whether code that lies beside the weights may run.
    """
    if not any(cache_folder().glob(f"{PREFIX}*")):
        return None
    try:
        files = _files(source, revision)
        for each in dict.fromkeys((dtype, *DTYPES)):
            table = cached(_without_weights(source, revision, each, trust, files))
            if table is not None:
                return table
    except (OSError, ValueError, TypeError, ImportError, AttributeError, KeyError, SafetensorError) as error:
        logger.warning("lade looked for no warm table, as it could not read the checkpoint: %s", error)
    return None


def named_table(path: str, vocabulary: int) -> WarmTable:
    """The table of a file, whatever model it belongs to.

    Raises:
        ValueError: names the file if it is no table of this vocabulary, or cannot be read.
    """
    return load_named(Path(path), vocabulary)


def _without_weights(source: str, revision: str | None, dtype: torch.dtype, trust: bool, files: dict[str, Path]) -> Any:
    """The model on the meta device, whose `state_dict` reads the checkpoint."""
    from transformers import AutoConfig, AutoModelForCausalLM

    options: dict[str, Any] = {"revision": revision or "main", "trust_remote_code": trust, "local_files_only": True}
    config = AutoConfig.from_pretrained(source, **options)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=trust)
    checkpoint = Checkpoint(model, files)
    model.state_dict = lambda: checkpoint
    return model


def _files(source: str, revision: str | None) -> dict[str, Path]:
    """In which file each weight lies."""
    index = _file(source, INDEX, revision)
    if index is not None:
        named = read_object(index, LARGEST_INDEX, index)["weight_map"]
        return {name: index.with_name(file) for name, file in named.items()}
    whole = _file(source, WHOLE, revision)
    if whole is None:
        raise ValueError(f"{source} must have {WHOLE} or {INDEX}")
    with safe_open(whole, "pt") as opened:
        return dict.fromkeys(opened.keys(), whole)


def _file(source: str, name: str, revision: str | None) -> Path | None:
    from transformers.utils.hub import cached_file

    found = cached_file(
        source, name, revision=revision or "main", local_files_only=True, _raise_exceptions_for_missing_entries=False
    )
    return None if found is None else Path(found)
