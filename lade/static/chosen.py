"""Whether a call's steps are static, and why not. Knows no drafting and no sampling."""

from __future__ import annotations

from typing import Any

from lade.facts.temperature import follows_index
from lade.static.buckets import NODES
from lade.static.shelf import borrowed
from lade.static.step import SPLITS
from lade.static.target import StaticTarget
from lade.target.model import HFTarget
from lade.target.verdicts import implementation_of

DEVICE = "cuda"  # where steps are static unless the settings say otherwise
MOST_ROWS = 32  # of which each has 8 nodes in the largest step


def wants_static(model: Any, asked: bool | str | None) -> bool:
    """Whether steps are static if they can be.

    Args:
        asked: by the settings; `None` leaves it to the device.
    """
    return model.device.type == DEVICE if asked is None else bool(asked)


def static_target(eager: HFTarget, rows: int, nodes: int, tokens: int, fused: bool = False) -> StaticTarget | str:
    """The target whose forwards of drafts are static steps, or why there is none.

    Args:
        eager: reads prompts; no slot is open.
        rows: the most that decode at once.
        nodes: the most of a step, as far as it is known.
        tokens: of the longest prompt, as far as it is known.
        fused: compile steps of one row.
    """
    reason = _reason(eager.model, rows, nodes)
    found = borrowed(eager.model, rows, tokens, fused) if reason is None else reason
    return found if isinstance(found, str) else StaticTarget(eager, found)


def _reason(model: Any, rows: int, nodes: int) -> str | None:
    implementation = implementation_of(model)
    if rows > MOST_ROWS:
        return f"{rows} rows (at most {MOST_ROWS} have static steps)"
    if nodes > NODES[-1]:
        return f"drafts of {nodes} tokens in a step (static steps have at most {NODES[-1]})"
    if implementation not in (SPLITS, "eager") or (implementation != SPLITS and rows > 1):
        return f"attention implementation {implementation!r} (static steps need {SPLITS!r})"
    if follows_index(model.config.get_text_config(decoder=True)):
        return "the model follows the index of tokens in its cache"
    if len({parameter.device for parameter in model.parameters()}) > 1:
        return "the model's weights are on several devices"
    return None
