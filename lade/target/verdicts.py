"""What the self-probe found about each model, for targets that are made of it. Knows no probe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from lade.target.attention import can_pack


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether trees can be decoded with a model, and how.

    Attributes:
        reason: why not; `None` if they can.
        unpacked: why its forwards are padded; `None` if they are packed.
    """

    reason: str | None
    unpacked: str | None


_last: WeakKeyDictionary[Any, Verdict] = WeakKeyDictionary()


def note(model: Any, verdict: Verdict) -> None:
    """Remember the verdict on a model as it is now."""
    _last[model] = verdict


def packs(model: Any) -> bool:
    """Whether forwards of this model are packed; not before it is probed."""
    verdict = _last.get(model)
    return verdict is not None and verdict.unpacked is None and can_pack(implementation_of(model))


def implementation_of(model: Any) -> str:
    """The name of its attention implementation."""
    return str(model.config.get_text_config(decoder=True)._attn_implementation)
