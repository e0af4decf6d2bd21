"""What the self-probe found about each model, for targets that are made of it. Knows no probe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from lade.kernels import available
from lade.kernels.blocks import DTYPES
from lade.target.attention import can_pack


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether trees can be decoded with a model, and how.

    Attributes:
        reason: why not; `None` if they can.
        unpacked: why its forwards are padded; `None` if they are packed.
        fused: whether its decoder layers may be fused (`lade.target.fused`); `None` while that is not probed.
    """

    reason: str | None
    unpacked: str | None
    fused: bool | None = None

    @property
    def packed(self) -> bool:
        """Whether its forwards are packed."""
        return self.reason is None and self.unpacked is None


# Rows up to which packed forwards are used. With 3,000 rows of a tiny model on a CPU they take 1.7 times as long as
# padded ones. On an accelerator a call is a launch: nothing has shown yet that several of them pay. Where kernels of
# `lade.kernels` run, all rows are one launch.
HOST_ROWS, ACCELERATOR_ROWS = 32, 1

PADDED = ("eager", "sdpa", "lade")  # implementations of attention that take any mask, as padded trees need one

_last: WeakKeyDictionary[Any, Verdict] = WeakKeyDictionary()


def note(model: Any, verdict: Verdict) -> None:
    """Remember the verdict on a model as it is now."""
    _last[model] = verdict


def packs(model: Any, rows: int = 1) -> bool:
    """Whether forwards of this model are packed; not before it is probed.

    Args:
        rows: the most sequences of a forward. Each is one call of attention per layer where they are packed.
    """
    verdict = _last.get(model)
    if verdict is None or verdict.unpacked is not None or not can_pack(implementation_of(model)):
        return False
    if implementation_of(model) not in PADDED or (available.runs(model.device) and model.dtype in DTYPES):
        return True
    return rows <= (HOST_ROWS if model.device.type == "cpu" else ACCELERATOR_ROWS)


def fuses(model: Any) -> bool:
    """Whether forwards of this model that are packed have fused decoder layers; not before it is probed."""
    verdict = _last.get(model)
    return verdict is not None and verdict.fused is True


def implementation_of(model: Any) -> str:
    """The name of its attention implementation."""
    return str(model.config.get_text_config(decoder=True)._attn_implementation)
