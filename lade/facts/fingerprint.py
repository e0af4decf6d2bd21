"""A model's fingerprint: a hash of its configuration and of the bits of every weight, the same on every device.

Weights are those that a checkpoint holds. Hooks, replaced `forward`s and the attention implementation do not count.
Knows no tokenizer and no file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from lade.base.locks import ModelLocks
from lade.facts.sharding import gathered, is_sharded, local

CHUNK = 1 << 17  # 8-byte words summed at a time: a megabyte, which fits a core's cache
EXACT = ("cpu", "cuda")  # where 64-bit integers are known to wrap around; other weights are summed on the CPU
SAMPLES = 4  # elements read of each weight, to notice writes that change no version counter
SERIAL = "lade_serial"  # attribute of packed weights (`lade.weights`)
DTYPE = "lade_dtype"  # of those that are packed in another dtype: their own
# Configuration entries that change no prediction, besides private ones and the ids of special tokens.
IRRELEVANT = {"architectures", "dtype", "torch_dtype", "transformers_version", "use_cache", "return_dict"}


@dataclass(frozen=True, slots=True)
class _Known:
    """A fingerprint, and the state of the weights that it was computed in."""

    state: tuple[Any, ...]
    fingerprint: str


_known: WeakKeyDictionary[Any, _Known] = WeakKeyDictionary()
_layouts: WeakKeyDictionary[Any, set[int]] = WeakKeyDictionary()  # hashes of states of the same weights
_locks = ModelLocks()


def fingerprint(model: Any) -> str:
    """A hash of every weight, dtype and configuration entry; cached until the weights change.

    Sharded weights count as if they were whole. To hash them is collective: all processes must call this function.

    A repeated call reads addresses, version counters and a few elements of each weight (`weights_state`): it misses
    only a write through `.data` that leaves these elements as they were.

    Raises:
        ValueError: weights without data (the meta device, offloading).
    """
    with _locks.of(model):
        known = _known.get(model)
        if known is None or not is_state(model, known.state):
            known = _known[model] = _Known(weights_state(model), _hash(model))
        return known.fingerprint


@contextmanager
def keep_fingerprint(model: Any) -> Iterator[None]:
    """Inside, weights change their layout and not their values: a fingerprint stays what it was."""
    before = weights_state(model)
    yield
    layouts = _layouts.get(model)
    if layouts is None or hash(before) not in layouts:
        layouts = _layouts[model] = {hash(before)}
    layouts.add(hash(weights_state(model)))


def is_state(model: Any, state: tuple[Any, ...]) -> bool:
    """Whether the weights are those of a `weights_state` of before, in whatever layout."""
    now, layouts = weights_state(model), _layouts.get(model, set())
    return now == state or {hash(now), hash(state)} <= layouts


def configuration_key(model: Any) -> str:
    """A hash of the configuration and of the weights' shapes and dtypes, whole ones; reads no weight."""
    shapes = [(str(getattr(tensor, DTYPE, tensor.dtype)), list(tensor.shape)) for tensor in _weights(model)]
    text = json.dumps([_relevant(model.config.to_dict()), shapes], sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def forward_state(model: Any) -> tuple[Any, ...]:
    """`weights_state`, and what else decides the keys and values of a text: all buffers and the configuration."""
    buffers = [_place(local(tensor)) for buffer in model.buffers() for tensor in _plain(buffer)]
    return (*weights_state(model), *buffers, json.dumps(_relevant(model.config.to_dict()), default=str))


@torch.no_grad()
def weights_state(model: Any) -> tuple[Any, ...]:
    """A value, cheap to compute, that differs once weights were changed or adapters switched."""
    tensors = list(map(local, _weights(model)))
    places = list(map(_place, tensors))
    samples: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
    for tensor in tensors:
        if tensor.device.type != "meta" and tensor.numel() and not hasattr(tensor, SERIAL):
            samples.setdefault((tensor.device, tensor.dtype), []).append(_sample(tensor))
    sampled = [torch.cat(parts).view(torch.uint8).cpu().numpy().tobytes() for parts in samples.values()]
    return (*places, *sampled, *_adapters(model))


def _place(tensor: torch.Tensor) -> tuple[int, int]:
    """Address and version counter; a packed weight has no address, but a number that no other one has."""
    address = getattr(tensor, SERIAL) if hasattr(tensor, SERIAL) else tensor.data_ptr()
    return address, -1 if tensor.is_inference() else tensor._version


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    """A few elements, evenly spaced from the first to the last."""
    tensor = tensor.contiguous()
    size = min(SAMPLES, tensor.numel())
    return tensor.as_strided((size,), (max((tensor.numel() - 1) // (SAMPLES - 1), 1),))


@torch.no_grad()
def _hash(model: Any) -> str:
    digest = hashlib.blake2b(configuration_key(model).encode(), digest_size=16)
    digest.update(repr(_adapters(model)).encode())
    keys: dict[torch.device, torch.Tensor] = {}
    for value in model.state_dict().values():  # names are left out: a wrapper around the model prefixes them
        for tensor in _plain(gathered(value)) if isinstance(value, torch.Tensor) else ():
            if tensor.device.type == "meta":
                raise ValueError("model must hold its weights, got some on the meta device or offloaded")
            if tensor.device.type not in EXACT:
                tensor = tensor.cpu()
            if tensor.device not in keys:
                keys[tensor.device] = _keys().to(tensor.device)
            digest.update(repr((str(tensor.dtype), tuple(tensor.shape))).encode())
            digest.update(repr(_sums(tensor, keys[tensor.device])).encode())
    return digest.hexdigest()


def _sums(tensor: torch.Tensor, keys: torch.Tensor) -> list[int]:
    """Per chunk, the sum modulo 2**64 of its scrambled words times odd keys: one changed word always changes it."""
    octets = tensor.detach().contiguous().view(-1).view(torch.uint8)
    if octets.storage_offset() % 8:
        octets = octets.clone()
    whole = octets.numel() // 8 * 8
    words = octets[:whole].view(torch.int64)
    chunks = [words[start : start + CHUNK] for start in range(0, len(words), CHUNK)]
    sums = [(_scrambled(chunk) * keys[: len(chunk)]).sum() for chunk in chunks]
    return (torch.stack(sums).tolist() if sums else []) + octets[whole:].tolist()


def _scrambled(words: torch.Tensor) -> torch.Tensor:
    """A bijection; without it, changed signs of two weights, in the words' highest bits, would cancel out."""
    words = words * 0x3F58476D1CE4E5B9
    return words.bitwise_xor_((words >> 32).bitwise_and_(0xFFFFFFFF))


def _keys() -> torch.Tensor:
    """[CHUNK] odd int64, pseudo-random, the same in every version of torch."""
    keys = _scrambled(torch.arange(1, CHUNK + 1) * 0x1E3779B97F4A7C15)
    return _scrambled(keys) | 1


def _weights(model: Any) -> Iterator[torch.Tensor]:
    """Parameters and the buffers that a checkpoint holds; tied ones once per use."""
    for module in model.modules():
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None and name not in module._non_persistent_buffers_set:
                yield from _plain(tensor)


def _plain(tensor: Any) -> Iterator[torch.Tensor]:
    """The plain tensors inside a wrapped one, such as a quantised weight; a sharded one itself."""
    if is_traceable_wrapper_subclass(tensor) and not is_sharded(tensor):
        for name in tensor.__tensor_flatten__()[0]:
            yield from _plain(getattr(tensor, name))
    else:
        yield tensor


def _adapters(model: Any) -> list[str]:
    """The active adapters of peft and their scales, which no weight shows."""
    names = ("_active_adapter", "_disable_adapters", "merged_adapters", "scaling")
    return [
        repr([getattr(module, name, None) for name in names])
        for module in model.modules()
        if "_active_adapter" in module.__dict__
    ]


def _relevant(config: Any) -> Any:
    """A configuration without the entries that change no prediction, at every depth."""
    if not isinstance(config, dict):
        return config
    return {
        str(name): _relevant(value)
        for name, value in config.items()
        if name not in IRRELEVANT and not str(name).startswith(("_", "output_")) and not str(name).endswith("token_id")
    }
