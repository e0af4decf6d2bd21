"""Safetensors files with a checksum: written atomically, verified when read.

Several processes may write one file. Knows no model, and nothing of what the tensors mean.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from lade.base.shown import shown
from lade.files.atomic import put_in_place
from lade.files.jsonobject import json_object
from lade.files.regularfile import MEBIBYTE, UnreadableFileError, read_bytes

CHECKSUM = "checksum"
LENGTH = 8  # bytes that hold the length of the header
MOST = 4096 * MEBIBYTE  # of any file; kinds of files have lower limits
DTYPES = ("I32", "I64", "F32", "F64", "U8")  # what lade writes


def write(path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str], most: int = MOST) -> None:
    """Write the file atomically; a reader gets the old one or the new one.

    Args:
        tensors: on the CPU, contiguous.
        most: bytes of the file, as for `read`.

    Raises:
        OSError: it cannot be written, or is larger.
    """
    content = safetensors.torch.save(tensors, metadata | {CHECKSUM: _checksum(tensors)})
    if len(content) > most:
        raise OSError(f"{path}: its size must be at most {most:,} bytes, got {len(content):,}")
    path.parent.mkdir(parents=True, exist_ok=True)
    put_in_place(path, content)


def read(path: Path, most: int = MOST) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """The tensors and the metadata that `write` was given.

    Args:
        most: bytes of a file that is read at all.

    Raises:
        AbsentFileError: there is none.
        UnreadableFileError: it cannot be read, `write` did not make it, or it is damaged.
    """
    content = read_bytes(path, most)  # `safe_open` opens the path twice, and it may be replaced in between
    metadata = _metadata(_header(content))
    try:
        tensors = safetensors.torch.load(content)
    except (safetensors.SafetensorError, RuntimeError, ValueError, MemoryError) as error:
        raise UnreadableFileError(f"not a safetensors file ({error})") from error
    if metadata.pop(CHECKSUM) != _checksum(tensors):
        raise UnreadableFileError("its content does not match its checksum")
    return tensors, metadata


def _header(content: bytes) -> dict[str, Any]:
    """The header, before the tensors; the file's size bounds it."""
    size = int.from_bytes(content[:LENGTH], "little")
    if len(content) < LENGTH or size > len(content) - LENGTH:
        raise UnreadableFileError(f"not a safetensors file ({len(content)} bytes hold no header)")
    try:
        return json_object(content[LENGTH : LENGTH + size].decode(), "its header")
    except ValueError as error:
        raise UnreadableFileError(f"not a safetensors file ({error})") from error


def _metadata(header: dict[str, Any]) -> dict[str, str]:
    """The metadata of a file that `write` made; other files may hold dtypes that torch lacks."""
    metadata = header.pop("__metadata__", None)
    if not isinstance(metadata, dict) or CHECKSUM not in metadata:
        raise UnreadableFileError("not a file of lade")
    if not all(isinstance(value, str) for value in metadata.values()):
        raise UnreadableFileError("not a safetensors file (its metadata must be text)")
    dtypes = [entry.get("dtype") if isinstance(entry, dict) else None for entry in header.values()]
    unknown = [dtype for dtype in dtypes if dtype not in DTYPES]
    if unknown:
        allowed = ", ".join(DTYPES)
        raise UnreadableFileError(f"the dtype of a tensor must be one of {allowed}, got {shown(unknown[0])}")
    return metadata


def _checksum(tensors: dict[str, torch.Tensor]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(tensors.items()):
        digest.update(repr((name, str(tensor.dtype), tuple(tensor.shape))).encode())
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
