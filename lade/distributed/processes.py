"""How the processes of a run share a call: not at all, the weights (tensor parallelism), or the draft trees.

What differs is which drafter and which target a call gets. Errors end the call on all ranks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from lade.base.shown import invalid
from lade.base.wrappers import unwrapped
from lade.config.settings import Settings
from lade.core.drafter import Drafter
from lade.core.request import Request
from lade.distributed.agreement import agree, common_reason
from lade.distributed.alone import FollowingDrafter, LeadingDrafter, Texts, exchanged
from lade.distributed.checksum import of_integers
from lade.distributed.costs import costs_of
from lade.distributed.group import Group, join, one_call
from lade.distributed.led import ComparedDrafter, LedDrafter
from lade.distributed.memory import Memory
from lade.distributed.record import Layout
from lade.distributed.steps import StepTimes, numbers
from lade.distributed.target import SharedTarget
from lade.distributed.watch import WORKING
from lade.distributed.wrapped import Nothing
from lade.drafters.factory import adapted, most_nodes
from lade.facts.fingerprint import configuration_key, fingerprint
from lade.facts.sharding import tensor_parallel, undivided_heads
from lade.facts.vocabulary import readable, writable
from lade.files.cachefolder import cache_folder
from lade.memory.corpusfile import load_corpus
from lade.memory.predictions import TOP
from lade.memory.warm.file import PREFIX
from lade.memory.warm.warming import cached
from lade.pace.pace import Pace, WholeBudget
from lade.pace.sharing import PACKED, PADDED
from lade.target.call import Call
from lade.target.model import HFTarget
from lade.target.verdicts import packs

Make = Callable[[WholeBudget | None], Drafter]


class OneProcess:
    """A call of this process alone.

    Attributes:
        splits: whether each process computes a part of the trees.
        settings: in place of the call's; `None` for those.
    """

    splits = False
    settings: Settings | None = None

    def target(self, target: Any) -> Any:
        """The target of a call; an `HFTarget` where processes share it."""
        return target

    def drafter(self, make: Make, with_model: bool) -> Drafter:
        """The drafter of a call.

        Args:
            make: makes that of one process, with a pace for mode "auto", or with `None`.
            with_model: whether a model drafts.
        """
        return make(None)

    def ended(self, requests: Sequence[Request]) -> None:
        """All texts of the call are decoded."""

    def common_reason(self, reason: str | None) -> str | None:
        """Why the call decodes plainly, from this rank's own reason, or `None`."""
        return reason


class TensorParallel(OneProcess):
    """A call of processes that hold a part of the weights each: rank 0 drafts, all compute and verify."""

    def __init__(self, group: Group, call: Call, settings: Settings) -> None:
        self.group, self.call, self._settings = group, call, settings

    def common_reason(self, reason: str | None) -> str | None:
        return common_reason(self.group, reason)

    def drafter(self, make: Make, with_model: bool) -> Drafter:
        if with_model:
            return ComparedDrafter(self.group, make(None))
        self._read_weights()
        rows = self.call.input_ids.shape[0]
        inner = make(None) if self.group.rank == 0 else Nothing()
        return LedDrafter(self.group, inner, rows, most_nodes(self.call.model, self._settings))

    def _read_weights(self) -> None:
        """The fingerprint, which all ranks compute together, where rank 0 has a warm table to look up by it."""
        if self._settings.mode != "auto" or "warm" not in self._settings.sources:
            return
        if self.group.broadcast_bytes(b"+" if self.group.rank == 0 and _may_have_table(self.call.model) else None):
            fingerprint(self.call.model)


class LookaheadParallel(OneProcess):
    """A call of processes that hold the whole model each, and compute a part of every tree.

    All draft alike: from equal texts, from predictions that came with an exchange, and by times that rank 0 has sent.
    Where sharing costs more than it saves, rank 0 decodes alone. It does not for a tenant, whose pools must stay equal.
    """

    def __init__(self, group: Group, call: Call, settings: Settings) -> None:
        self.group, self.call = group, call
        memory = group.memories.setdefault(unwrapped(call.model), Memory(numbers(group.size)))
        leaves = settings.adapt and settings.tenant is None
        alone = leaves and bool(group.broadcast(torch.tensor([memory.alone])))
        memory.begin(alone)
        self._steps = StepTimes(group.size, settings.adapt, leaves, memory, alone=alone)
        self.settings = self._own = settings if alone else _with_common_sources(group, call.model, settings)
        self.splits = not alone or group.rank > 0
        group.watch.work()  # a self-probe may take long

    def common_reason(self, reason: str | None) -> str | None:
        return common_reason(self.group, reason)

    def target(self, target: HFTarget) -> SharedTarget:
        nodes, sampling = most_nodes(target.model, self._own), bool(self.call.generation_config.do_sample)
        top = TOP if self._own.mode == "auto" else 0
        vocabulary = max(target.vocabulary, writable(target.model))
        apart = sampling or bool(self.call.processors)
        layout = Layout.of(self.call.input_ids.shape[0], nodes, vocabulary, min(top, vocabulary), apart)
        self._target = SharedTarget(target, self.group, layout, self._steps)
        return self._target

    def drafter(self, make: Make, with_model: bool) -> Drafter:
        if self._steps.alone:
            return FollowingDrafter(Nothing(), self._texts) if self.group.rank else make(None)
        own = make(self._pace() if self._own.mode == "auto" else None)
        return FollowingDrafter(own, self._texts) if self.group.rank else LeadingDrafter(own, lambda: self._steps.alone)

    def _texts(self) -> Texts | None:
        return self._target.texts() if self._steps.alone else None

    def ended(self, requests: Sequence[Request]) -> None:
        if self._steps.alone and self.group.rank == 0:
            exchanged(self.group, [request.tokens[request.prompt_length :] for request in requests])

    def _pace(self) -> WholeBudget:
        model = self.call.model
        sharing = PACKED if packs(model, self.call.input_ids.shape[0]) else PADDED

        def pace(budget: int) -> Pace:
            return Pace(costs_of(self.group, model), budget, sharing=sharing, moments=self._steps)

        return adapted(model, self._own, pace)


def _with_common_sources(group: Group, model: Any, settings: Settings) -> Settings:
    """The settings without the warm table and the corpus, unless all ranks have the same ones."""
    if settings.mode != "auto":
        return settings
    sources = settings.sources
    if "warm" in sources:
        table = cached(model)
        sources = _where_common(group, sources, "warm", b"" if table is None else table.digest.encode())
    if "corpus" in sources and settings.corpus is not None:
        digest = load_corpus(settings.corpus, readable(model)).digest()
        sources = _where_common(group, sources, "corpus", digest)
    return replace(settings, sources=sources)


def _where_common(group: Group, sources: Sequence[str], name: str, digest: bytes) -> tuple[str, ...]:
    """The sources without this one, unless all ranks have it, with the same digest; none has an empty one."""
    numbers = group.gather(torch.tensor([of_integers(list(digest))]), WORKING)
    common = digest and len(set(numbers.flatten().tolist())) == 1
    return tuple(source for source in sources if common or source != name)


def _may_have_table(model: Any) -> bool:
    """Whether the cache folder has a warm table for a model of this configuration."""
    try:
        return any(cache_folder().glob(f"{PREFIX}{configuration_key(model)}-*"))
    except OSError:
        return False


@contextlib.contextmanager
def processes(call: Call, settings: Settings, splits: bool, draws: bool) -> Iterator[OneProcess]:
    """In this scope the processes of a call share it; an error of one ends it on all of them.

    Args:
        splits: whether each can compute a part of the trees, if the settings ask for it; else each decodes alone.
        draws: whether this process may draw random numbers between those of the samples: then each decodes alone, too.

    Raises:
        RankError: a rank has died, stalls or disagrees.
        ValueError: there is another number of processes than the settings ask for, or they cannot divide the heads.
    """
    sharded = is_shared(call.model)
    if sharded:
        _check_heads(call.model)
    if settings.workers > 1:
        join(settings.workers)
        if sharded:
            raise invalid("DIST_WORKERS", "1 for a model that is sharded over the processes", settings.workers)
    elif not sharded:
        yield ONE
        return
    with one_call(settings.timeout) as group:
        shares = agree(group, call, settings, splits, draws)
        if sharded:
            with _limited(call.model, group.timeout):
                yield TensorParallel(group, call, settings)
        else:
            yield LookaheadParallel(group, call, settings) if shares else ONE


ONE = OneProcess()


def is_shared(model: Any) -> bool:
    """Whether all processes hold a part of the weights each."""
    size = tensor_parallel(model)
    return size > 1 and dist.is_initialized() and dist.get_world_size() == size


def _check_heads(model: Any) -> None:
    heads = undivided_heads(model)
    if heads is not None:
        size = tensor_parallel(model)
        raise ValueError(f"the heads of a sharded model must be a multiple of its {size} processes, got {heads}")


@contextlib.contextmanager
def _limited(model: Any, timeout: float) -> Iterator[None]:
    """Collectives of the model's forwards fail after the timeout."""
    group, change = model._device_mesh["tp"].get_group(), dist.distributed_c10d._set_pg_timeout
    before = group._get_backend(model.device).options._timeout
    change(timedelta(seconds=timeout), group)
    try:
        yield
    finally:
        change(before, group)
