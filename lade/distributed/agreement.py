"""What all ranks must share as a call begins: its arguments, and the state of the generator that sampling uses."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import torch

from lade.config.settings import Settings
from lade.core.processors import parameters_of
from lade.distributed.errors import RankError
from lade.distributed.group import Group
from lade.distributed.watch import WORKING
from lade.facts.sharding import is_sharded
from lade.target.call import Call, generated_length
from lade.target.nextinputs import beside_text, tensors_in

COMPARED = (
    *("do_sample", "eos_token_id", "temperature", "top_k", "top_p", "repetition_penalty", "min_length"),
    *("use_cache", "cache_implementation", "prefill_chunk_size"),  # they decide the forwards' shapes
)
DIGEST = 2  # int64 numbers
SAMPLES = 64  # numbers of the embedding that are compared, and of images
TOLERANCE = 0.05  # of the largest one: machines encode one image to unequal last bits


def agree(group: Group, call: Call, settings: Settings, splits: bool, draws: bool) -> bool:
    """Whether all ranks share the trees of a call; sampled calls take the state of rank 0's generator.

    Args:
        splits, draws: as of `lade.distributed.processes.processes`, on this rank.

    Raises:
        RankError: another rank makes another call.
    """
    own = torch.cat([_digest(call, settings, splits), _beside(call), torch.tensor([splits and not draws])])
    found = group.gather(own, WORKING)
    other = [rank for rank in range(group.size) if not _alike(found[rank, :-1], found[0, :-1])]
    if other:
        named = ", ".join(map(str, other))
        raise RankError(f"all ranks must make the same call, got another one (model, prompts or settings) on {named}")
    if call.generation_config.do_sample:
        _take_state(group, call.input_ids.device)
    return bool(found[:, -1].all())


def common_reason(group: Group, reason: str | None) -> str | None:
    """Why all ranks decode plainly: a rank has a reason of its own, or another one has. `None` where none has."""
    found = group.gather(torch.tensor([reason is not None]), WORKING).flatten().tolist()
    if reason is not None or not any(found):
        return reason
    return f"rank {found.index(True)} does, and its warning tells why"


def _digest(call: Call, settings: Settings, splits: bool) -> torch.Tensor:
    """[DIGEST] int64. Parameters of processors count where ranks choose for each other, but for the caller's own."""
    config, mask = call.generation_config, call.model_kwargs.get("attention_mask")
    known = parameters_of if splits else type
    parts = (
        call.input_ids.tolist(),
        None if mask is None else mask.tolist(),
        generated_length(call),
        [getattr(config, name, None) for name in COMPARED],
        [known(each) for each in call.processors],
        [type(each) for each in call.criteria],
        replace(settings, debug=0),
        type(call.model).__name__,
        _embedding(call.model),
    )
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8 * DIGEST).digest()
    return torch.frombuffer(bytearray(digest), dtype=torch.int64)


def _beside(call: Call) -> torch.Tensor:
    """[SAMPLES] int64: the bits of some float64 numbers of the images and the like, zeros where there are fewer."""
    given = [tensor for name in beside_text(call.model_kwargs) for tensor in tensors_in(call.model_kwargs[name])]
    tensors = [tensor.detach().reshape(-1) for tensor in given if tensor.is_floating_point() and tensor.numel()]
    found, each = torch.zeros(SAMPLES, dtype=torch.float64), max(1, SAMPLES // max(1, len(tensors)))
    for index, flat in enumerate(tensors[:SAMPLES]):
        some = flat[:: -(-len(flat) // each)].double().cpu()
        found[index * each :][: len(some)] = some
    return found.view(torch.int64)


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two ranks make the same call: equal digests, and images that differ by rounding at most."""
    images = torch.stack([one, other])[:, DIGEST:].view(torch.float64).nan_to_num()
    apart, largest = (images[0] - images[1]).abs().max(), images.abs().max()
    return bool(apart <= TOLERANCE * largest) and torch.equal(one[:DIGEST], other[:DIGEST])


def _embedding(model: Any) -> list[float]:
    """Some numbers of the input embedding, which tell models of one kind apart; none of a sharded one."""
    weight = getattr(model.get_input_embeddings(), "weight", None)
    if not isinstance(weight, torch.Tensor) or is_sharded(weight) or weight.is_meta or not weight.is_floating_point():
        return []
    flat = weight.detach().reshape(-1)
    found: list[float] = flat[:: max(1, len(flat) // SAMPLES)].double().tolist()
    return found


def _take_state(group: Group, device: torch.device) -> None:
    """Let the default generator of the device draw the same numbers on all ranks: those of rank 0."""
    on_host: Any = device.type == "cpu"
    state = torch.get_rng_state() if on_host else torch.get_device_module(device).get_rng_state(device)
    state = group.broadcast(state.clone())
    if group.rank:
        if on_host:
            torch.set_rng_state(state)
        else:
            torch.get_device_module(device).set_rng_state(state, device)
