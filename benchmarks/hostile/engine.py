"""Comparing requests of one engine, which arrive, fail, are cancelled and leave at random, with each of them alone.

After the engine is closed, nothing of it may be left: no slot, hook, registration with transformers, or buffer.
"""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.modeling_utils import AttentionInterface

import lade
from hostile.arrivals import Arrival, arrivals
from hostile.calls import method_of, plainly
from hostile.case import Case
from hostile.outcome import differences
from hostile.subjects import subject
from hostile.verdict import CaseVerdict
from lade.target import attention
from lade.target.model import HFTarget

REFUSALS = ("model must be one that decodes draft trees", "layers.attention must be ()")
Buffer = weakref.ref[torch.Tensor]
BESIDE = 0.05  # of the arrivals: plain decoding of the same arguments while the engine is open


def run(case: Case, verdict: CaseVerdict) -> None:
    model = subject(case.model, case.attention, case.dtype)
    lade.drop_pools()
    method = method_of(case, model)
    models = [model, *([method.draft] if case.method in ("draft", "multi") else [])]
    before = [_traces(each) for each in models]
    config = None if method is not None else lade.LookaheadConfig(**case.config)
    crowd = arrivals(case, model)
    try:
        kv_bytes = _kv_bytes(case, crowd, model, config) if case.memory else None
        engine = lade.Engine(model, config, method=method, slots=case.slots, kv_bytes=kv_bytes)
    except ValueError as error:
        verdict.reason = f"refused: {error}"
        if not str(error).startswith(REFUSALS):
            verdict.differences.append(verdict.reason)
        return
    engine._loop.step_tokens = case.chunk
    with warnings.catch_warnings(record=True) as caught, engine:
        warnings.simplefilter("always")
        buffers = _decode(case, model, engine, crowd, verdict)
    for arrival in crowd:
        _judge(arrival, model, verdict)
    verdict.differences += _extra_warnings(caught, crowd)
    verdict.differences += [f"after close, {line}" for line in _open_slots(engine)]
    gc.collect()
    if any(buffer() is not None for buffer in [*buffers, *_buffers(engine)]):
        verdict.differences.append("after close, buffers are left")
    if [_traces(each) for each in models] != before:
        verdict.differences.append("the model, or what is registered with transformers, is not as before")
    lade.drop_pools()


def _kv_bytes(case: Case, crowd: list[Arrival], model: PreTrainedModel, config: Any) -> int:
    """The bound that the case draws: some requests of the crowd must wait for others, or are refused."""
    with lade.Engine(model, config, method=method_of(case, model), slots=case.slots, kv_bytes=1) as engine:
        assert engine._budget is not None
        return int(case.memory * engine._budget.bytes(max(arrival.tokens for arrival in crowd)))


def _decode(
    case: Case, model: PreTrainedModel, engine: lade.Engine, crowd: list[Arrival], verdict: CaseVerdict
) -> list[Buffer]:
    """Let all arrive, each after its wait, and step until nobody is left. Returns buffers of the KV caches."""
    draws, entered, buffers = case.draws("beside"), list[Arrival](), list[Buffer]()
    for arrival in crowd:
        for _ in range(arrival.wait):
            _step(engine, entered, verdict)
        arrival.submit(engine, model)
        if arrival.refused:
            verdict.reason = f"refused: {arrival.error}"
        entered.append(arrival)
        arrival.maybe_cancel(engine)
        if draws.random() < BESIDE:
            verdict.differences += _beside(arrival, model)
        buffers = _buffers(engine) or buffers
    if case.draws("end").random() < 0.15:  # closed while requests decode and wait
        for arrival in entered:
            arrival.cut |= arrival.request is not None and not arrival.request.finished
        return buffers
    while _step(engine, entered, verdict):
        pass
    verdict.differences += [f"after the last request, {line}" for line in _open_slots(engine)]
    return buffers


def _step(engine: lade.Engine, entered: list[Arrival], verdict: CaseVerdict) -> bool:
    state = torch.get_rng_state()
    cut = [arrival for arrival in entered if arrival.cut]
    left = engine.step()
    verdict.differences += [f"{arrival} goes on" for arrival in cut if not arrival.request.finished]
    if not torch.equal(torch.get_rng_state(), state):
        verdict.differences.append("a step changes the global generator")
    budget = engine._budget
    if budget is not None and max(budget.reserved, _stored(engine)) > budget.limit:
        verdict.differences.append("keys and values take, or reserve, more than kv_bytes")
    for arrival in entered:
        arrival.maybe_cancel(engine)
    return left


def _beside(arrival: Arrival, model: PreTrainedModel) -> list[str]:
    """Differences of plain decoding while an engine is open."""
    again = plainly(arrival.case, model, arrival.fresh(model))
    return [f"{line}, in plain decoding beside the engine" for line in differences(again, arrival.plain)]


def _judge(arrival: Arrival, model: PreTrainedModel, verdict: CaseVerdict) -> None:
    found, tie = arrival.findings(model)
    verdict.differences += found
    verdict.ties += [] if tie is None else [tie]
    if arrival.request is None:
        return
    request = arrival.request
    verdict.calls += 1
    verdict.native += 1
    verdict.tokens += request.emitted
    verdict.native_tokens += request.emitted
    verdict.accepted += sum(request.tally.accepted.values())
    verdict.steps += sum(request.tally.lengths.values())


def _targets(engine: lade.Engine) -> Iterator[HFTarget]:
    """The engine's model and its draft model, each with a KV cache."""
    yield engine._target
    draft = getattr(getattr(engine._drafter, "model", None), "draft", None)
    if draft is not None:
        yield draft


def _open_slots(engine: lade.Engine) -> list[str]:
    names = zip(("the target", "the draft model"), _targets(engine), strict=False)
    return [f"{name} has slots {sorted(target.cache.lengths)}" for name, target in names if target.cache.lengths]


def _buffers(engine: lade.Engine) -> list[Buffer]:
    layers = [layer for target in _targets(engine) for layer in target.cache.own_layers()]
    tensors = [tensor for layer in layers for tensor in (layer.keys, layer.values)]
    return [weakref.ref(tensor) for tensor in tensors if tensor is not None]


def _stored(engine: lade.Engine) -> int:
    """Bytes of the keys and values of its requests."""
    buffers = [tensor for layer in engine._target.cache.own_layers() for tensor in (layer.keys, layer.values)]
    return sum(buffer.nbytes for buffer in buffers if buffer is not None)


def _traces(model: PreTrainedModel) -> list[Any]:
    """What an engine could leave on a model and in transformers."""
    hooks = [(len(module._forward_hooks), len(module._forward_pre_hooks)) for module in model.modules()]
    own = [sorted(vars(module)) for module in model.modules()]
    registered = dict(AttentionInterface._global_mapping)
    settings = (model.generation_config.to_dict(), model.config.to_dict(), model.training)
    return [hooks, own, registered, attention._users, settings]


def _extra_warnings(caught: list[warnings.WarningMessage], crowd: list[Arrival]) -> list[str]:
    usual = {text for arrival in crowd for _, text in arrival.plain.warned}
    extra = [f"{each.category.__name__}: {each.message}" for each in caught if str(each.message) not in usual]
    return [f"a warning that plain decoding does not give: {extra[0][:200]}"] if extra else []
