"""Ways to damage a file, in its bytes or its meaning; each is a function of the content and a generator."""

from __future__ import annotations

import contextlib
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from lade.files.safefile import write

DEEP = 20_000  # nested brackets
Rewrite = Callable[[bytes, random.Random], bytes]


def _flipped(content: bytes, draws: random.Random) -> bytes:
    damaged = bytearray(content)
    for _ in range(draws.choice((1, 3, 50))):
        damaged[draws.randrange(len(damaged))] ^= 1 << draws.randrange(8)
    return bytes(damaged)


def _header(content: bytes) -> tuple[dict[str, Any], bytes]:
    size = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def _with_header(header: bytes, rest: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header + rest


def _described(change: Callable[[dict[str, Any], random.Random], Any]) -> Rewrite:
    """A safetensors file with another header."""

    def rewrite(content: bytes, draws: random.Random) -> bytes:
        header, rest = _header(content)
        changed = change(header, draws)
        return _with_header(json.dumps(header if changed is None else changed).encode(), rest)

    return rewrite


def _tensor(name: str, value: Any) -> Callable[[dict[str, Any], random.Random], None]:
    """One tensor's entry with another value in one of its fields."""

    def change(header: dict[str, Any], draws: random.Random) -> None:
        tensors = [each for each in header if each != "__metadata__"]
        header[draws.choice(tensors)][name] = value

    return change


def _metadata(value: Any) -> Callable[[dict[str, Any], random.Random], None]:
    def change(header: dict[str, Any], draws: random.Random) -> None:
        header["__metadata__"] = value

    return change


def _entry(value: Any) -> Callable[[dict[str, Any], random.Random], None]:
    """One entry of the metadata with another value."""

    def change(header: dict[str, Any], draws: random.Random) -> None:
        header["__metadata__"][draws.choice(list(header["__metadata__"]))] = value

    return change


ANY: dict[str, Rewrite] = {
    "empty": lambda content, draws: b"",
    "truncated": lambda content, draws: content[: draws.randrange(len(content))],
    "longer": lambda content, draws: content + draws.randbytes(draws.randint(1, 100)),
    "flipped": _flipped,
    "garbage": lambda content, draws: draws.randbytes(draws.choice((1, 8, 9, 500))),
    "zeros": lambda content, draws: bytes(len(content)),
    "deep": lambda content, draws: b"[" * DEEP,
}
TENSORS: dict[str, Rewrite] = {
    "no-metadata": _described(lambda header, draws: {n: v for n, v in header.items() if n != "__metadata__"}),
    "null-metadata": _described(_metadata(None)),
    "list-metadata": _described(_metadata([1])),
    "number-in-metadata": _described(_entry(5)),
    "other-metadata": _described(_entry("999")),
    "null-header": _described(lambda header, draws: [None]),
    "foreign-dtype": _described(_tensor("dtype", "F8_E8M0")),
    "small-dtype": _described(_tensor("dtype", "F4")),
    "no-dtype": _described(_tensor("dtype", "X9")),
    "other-dtype": _described(_tensor("dtype", "U8")),
    "null-tensor": _described(_tensor("shape", None)),
    "other-shape": _described(_tensor("shape", [1, 2, 3])),
    "negative-shape": _described(_tensor("shape", [-1])),
    "huge-shape": _described(_tensor("shape", [2**62, 4])),
    "other-offsets": _described(_tensor("data_offsets", [0, 8])),
    "deep-header": lambda content, draws: _with_header(b"[" * DEEP, b""),
    "deep-metadata": lambda content, draws: _with_header(
        b'{"__metadata__":' + b'{"a":' * DEEP + b"1" + b"}" * DEEP + b"}", b""
    ),
    "huge-header": lambda content, draws: (2**63 - 1).to_bytes(8, "little") + content[8:],
    "not-utf8": lambda content, draws: _with_header(b'{"\xff\xfe":1}', b""),
}
OBJECTS: dict[str, Rewrite] = {
    "null": lambda content, draws: b"null",
    "list": lambda content, draws: b"[1, 2]",
    "mark": lambda content, draws: b"\xef\xbb\xbf" + content,
    "not-utf8": lambda content, draws: b'{"kind": "\xff"}',
    "deep-inside": lambda content, draws: content[:-2] + b', "x": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    "long-number": lambda content, draws: content.rstrip()[:-1] + b', "x": ' + b"9" * 5000 + b"}",
    "other-values": lambda content, draws: _other_values(content, draws),
    "no-number": lambda content, draws: content.replace(b"5", b"NaN").replace(b"1", b"-Infinity"),
}
STRANGE: tuple[Any, ...] = (None, -1, 0, 1.5, 10**30, True, "", "x", [], [1, "a"], {}, {"a": 1}, float("inf"))


def _other_values(content: bytes, draws: random.Random) -> bytes:
    """A JSON object with an unusual value at a random place."""
    found = json.loads(content)
    place = found
    while True:
        name = draws.choice(list(place))
        if not isinstance(place[name], dict) or not place[name] or draws.random() < 0.4:
            break
        place = place[name]
    place[name] = draws.choice(STRANGE)
    return json.dumps(found).encode()


def rewritten(path: Path, rewrite: Rewrite, draws: random.Random) -> None:
    path.write_bytes(rewrite(path.read_bytes(), draws))


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _fifo(path: Path) -> None:
    path.unlink()
    if hasattr(os, "mkfifo"):
        os.mkfifo(path)


def _linked(target: Callable[[Path], Path]) -> Callable[[Path], None]:
    """Replace the file by a link; by nothing if the system forbids links."""

    def link(path: Path) -> None:
        path.unlink()
        with contextlib.suppress(OSError, NotImplementedError):
            path.symlink_to(target(path))

    return link


PLACES: dict[str, Callable[[Path], None]] = {
    "directory": _directory,
    "fifo": _fifo,
    "dangling": _linked(lambda path: path.with_name("nowhere")),
    "circle": _linked(lambda path: path),
    "device": _linked(lambda path: Path("/dev/zero")),
    "gone": Path.unlink,
}


def revalued(path: Path, draws: random.Random) -> None:
    """Change one tensor of a file of lade's, with a valid checksum."""
    content = path.read_bytes()
    tensors, metadata = safetensors.torch.load(content), _header(content)[0]["__metadata__"]
    name = draws.choice(list(tensors))
    tensors[name] = _other_tensor(tensors[name], draws)
    write(path, tensors, {key: value for key, value in metadata.items() if key != "checksum"})


def _other_tensor(tensor: torch.Tensor, draws: random.Random) -> torch.Tensor:
    how = draws.choice(("values", "values", "shape", "dtype", "empty"))
    if how == "shape":
        return tensor.reshape(-1, 1).contiguous() if draws.random() < 0.5 else tensor[None].contiguous()
    if how == "dtype":
        return tensor.to(draws.choice((torch.float64, torch.int64, torch.bool, torch.bfloat16)))
    if how == "empty":
        return tensor[:0].contiguous()
    if tensor.is_floating_point():
        return torch.full_like(
            tensor, draws.choice((float("nan"), float("inf"), -1.0, 0.0, torch.finfo(tensor.dtype).max))
        )
    return torch.full_like(tensor, draws.choice((-5, 0, 1, 2**31 - 1)))
