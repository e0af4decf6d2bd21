"""The visible effects of a call of `generate`, and the differences of two calls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, StaticCache

from hostile.users import StopError

TOLERANCE = {torch.float32: 2e-3, torch.float64: 1e-5, torch.bfloat16: 2e-2}
FALLBACK = "FallbackWarning"
LEFT = "is left to transformers"  # ends the reason of calls about which lade warns nothing


@dataclass
class CallOutcome:
    """One call: its result or error, its streamed tokens, and its side effects."""

    result: Any = None
    error: BaseException | None = None
    handed: list[Any] = field(default_factory=list)  # to the streamer
    notes: list[Any] = field(default_factory=list)  # inputs of user code
    cache: Any = None
    generator: Tensor = field(default_factory=lambda: torch.zeros(0))  # its state at the end
    warned: list[tuple[str, str]] = field(default_factory=list)
    transitions: Tensor | None = None
    changed: list[str] = field(default_factory=list)  # changed arguments and settings
    own: bool = False  # whether the result holds the user's cache itself
    stats: Any = None  # lade's statistics, if it saw the call
    hidden: Tensor | None = None  # [B, P] true at cache positions with undefined values

    @property
    def sequences(self) -> Tensor | None:
        return self.result if isinstance(self.result, Tensor) else getattr(self.result, "sequences", None)


def differences(ours: CallOutcome, plain: CallOutcome, *, drawn: bool = True) -> list[str]:
    """One line for every difference from plain decoding.

    Args:
        drawn: whether the state of the global generator must be equal.
    """
    if ours.error is not None or plain.error is not None:
        found = list(_errors(ours, plain))
    else:
        found = list(_texts(ours, plain)) or list(_results(ours, plain))
    if drawn and not torch.equal(ours.generator, plain.generator) and plain.error is None and not found:
        found.append("the global generator ends in another state")
    return (
        found + list(_warnings(ours, plain)) + [f"{name} changed" for name in ours.changed if name not in plain.changed]
    )


def _errors(ours: CallOutcome, plain: CallOutcome) -> Iterator[str]:
    if type(ours.error) is not type(plain.error) and not _outgrown(ours, plain):
        yield f"lade raises {_told(ours.error)}, plain {_told(plain.error)}"
    elif ours.handed != plain.handed and not _cut_short(ours, plain):
        yield f"before the error the streamer got {len(ours.handed)} parts, plainly {len(plain.handed)}"
    elif ours.notes != plain.notes:
        yield "before the error the user's own code saw other texts"


def _outgrown(ours: CallOutcome, plain: CallOutcome) -> bool:
    """Whether both fail beyond the model's positions, in different tensors: plain decoding also forwards ended rows."""
    errors = {type(ours.error), type(plain.error)}
    return errors == {IndexError, RuntimeError} and _cut_short(ours, plain)


def _cut_short(ours: CallOutcome, plain: CallOutcome) -> bool:
    """Whether the model fails, which ends rows that are behind before their last tokens."""
    of_a_user = isinstance(plain.error, StopError | KeyboardInterrupt)
    return not of_a_user and ours.handed == plain.handed[: len(ours.handed)]


def _told(error: BaseException | None) -> str:
    return "nothing" if error is None else f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _texts(ours: CallOutcome, plain: CallOutcome) -> Iterator[str]:
    one, other = ours.sequences, plain.sequences
    if type(ours.result) is not type(plain.result):
        yield f"the result is a {type(ours.result).__name__}, plainly a {type(plain.result).__name__}"
    elif one is None or other is None:
        yield "no sequences"
    elif one.dtype != other.dtype or one.shape != other.shape or not torch.equal(one, other):
        yield f"sequences: {where(one, other)}"


def where(one: Tensor, other: Tensor) -> str:
    """Where the texts of two calls differ."""
    width = min(one.shape[1], other.shape[1])
    if one.shape[0] != other.shape[0] or one.dtype != other.dtype:
        return f"{one.dtype} of {tuple(one.shape)}, plainly {other.dtype} of {tuple(other.shape)}"
    rows = (one[:, :width] != other[:, :width]).nonzero()
    if not len(rows):
        return f"{one.shape[1]} tokens, plainly {other.shape[1]}"
    row, place = rows[0].tolist()
    return f"row {row} parts at {place}: {one[row, place:].tolist()[:12]}, plainly {other[row, place:].tolist()[:12]}"


def _results(ours: CallOutcome, plain: CallOutcome) -> Iterator[str]:
    for name in ("scores", "logits"):
        yield from _of_steps(name, getattr(ours.result, name, None), getattr(plain.result, name, None))
    if ours.handed != plain.handed:
        yield f"the streamer got {len(ours.handed)} parts, plainly {len(plain.handed)}, or others"
    if ours.own != plain.own:
        yield "the cache in the result is not the user's own"
    if ours.notes != plain.notes:
        yield "the user's own processors and criteria saw other texts"
    yield from of_caches(ours.cache, plain.cache, plain.hidden)
    if plain.transitions is not None:
        yield from _of_steps("transition scores", ours.transitions, plain.transitions)


def _of_steps(name: str, ours: Any, plain: Any) -> Iterator[str]:
    if (ours is None) != (plain is None):
        yield f"{name}: {'none' if ours is None else 'some'}, plainly {'none' if plain is None else 'some'}"
        return
    if plain is None:
        return
    if len(ours) != len(plain):
        yield f"{name} of {len(ours)} tokens, plainly {len(plain)}"
        return
    for index, (one, other) in enumerate(zip(ours, plain, strict=True)):
        gap = distance(one, other)
        if gap is not None:
            yield f"{name}[{index}] {gap}"
            return


def of_caches(ours: Any, plain: Any, hidden: Tensor | None = None) -> Iterator[str]:
    """Differences of two returned caches, except at hidden positions."""
    if type(ours) is not type(plain):
        yield f"the cache is a {type(ours).__name__}, plainly a {type(plain).__name__}"
    elif isinstance(plain, DynamicCache | StaticCache):
        length = _length(plain)
        if _length(ours) != length:
            yield f"the cache holds {_length(ours)} positions, plainly {length}"
            return
        kinds = [[type(layer).__name__ for layer in cache.layers] for cache in (ours, plain)]
        if kinds[0] != kinds[1]:
            yield f"cache layers {kinds[0]}, plainly {kinds[1]}"
            return
        for number, (one, other) in enumerate(zip(ours.layers, plain.layers, strict=True)):
            yield from _of_layers(number, one, other, length, hidden)


def _length(cache: DynamicCache | StaticCache) -> int:
    """Positions in the cache; 0 for a recurrent state."""
    try:
        return int(cache.get_seq_length())
    except ValueError:
        return 0


def _of_layers(number: int, ours: Any, plain: Any, length: int, hidden: Tensor | None) -> Iterator[str]:
    for name in ("keys", "values"):
        one, other = getattr(ours, name, None), getattr(plain, name, None)
        if isinstance(one, Tensor) != isinstance(other, Tensor):
            yield f"cache layer {number}: {name} are missing on one side"
        elif isinstance(one, Tensor) and isinstance(other, Tensor):
            if hidden is not None and one.shape == other.shape:
                one, other = _seen(one, length, hidden), _seen(other, length, hidden)
            gap = distance(one, other)
            if gap is not None:
                yield f"cache layer {number}: {name} {gap}"
                return


def _seen(entries: Tensor, length: int, hidden: Tensor) -> Tensor:
    """[B, H, L, D] with zeros at hidden positions; of the last L of `length` positions, or room for more."""
    length = max(length, entries.shape[2])
    first = length - entries.shape[2]
    whole = torch.zeros(len(entries), length, dtype=torch.bool)
    whole[:, : hidden.shape[1]] = hidden.repeat_interleave(len(entries) // len(hidden), 0)
    return entries.masked_fill(whole[:, None, first:, None], 0)


def distance(one: Any, other: Any) -> str | None:
    """The difference of two tensors; `None` if they are equal up to rounding."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return f"{one.dtype} of {tuple(one.shape)}, plainly {other.dtype} of {tuple(other.shape)}"
    if not one.is_floating_point():
        return None if torch.equal(one, other) else "differ"
    finite = other.isfinite()
    if not torch.equal(one.isfinite(), finite) or not torch.equal(
        one[~finite].nan_to_num(), other[~finite].nan_to_num()
    ):
        return "differ in what is infinite or no number"
    gap = (one - other).abs().where(finite, 0)
    over = gap > TOLERANCE.get(one.dtype, 1e-2) * other.abs().where(finite, 0).clamp(min=1)
    if not over.any():
        return None
    places = over.nonzero()
    return f"off by {gap.max().item():.2g} at {len(places)} of {over.numel()} places, first {places[0].tolist()}"


def _warnings(ours: CallOutcome, plain: CallOutcome) -> Iterator[str]:
    fallbacks = [text for kind, text in ours.warned if kind == FALLBACK]
    reason = None if ours.stats is None else ours.stats.fallback
    plainly = reason is not None and not reason.endswith(LEFT)
    unseen = ours.error is not None or ours.stats is None  # assisted generation warns without statistics
    if len(fallbacks) > 1 or (not unseen and len(fallbacks) != plainly):
        yield f"{len(fallbacks)} fallback warnings where lade decodes {'plainly' if plainly else 'natively'}"
    usual = set(plain.warned)
    extra = [warning for warning in ours.warned if warning not in usual and warning[0] != FALLBACK]
    if extra:
        yield f"a warning that plain decoding does not give: {extra[0][0]}: {extra[0][1][:160]}"
