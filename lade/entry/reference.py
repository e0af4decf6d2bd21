"""Texts that an output may repeat: what a user may give, as token ids per row, and where.

Knows of a model how many ids it reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lade.base.wrappers import unwrapped
from lade.config.settings import LookaheadConfig
from lade.facts.vocabulary import readable

KEY = "reference"  # the one entry of `GenerationConfig(lade={...})`
References = list[Sequence[int] | None]


def references_for(
    reference: Any, generation_config: Any, config: LookaheadConfig, rows: int, model: Any
) -> References | None:
    """The references of a call, one per row; the argument counts where the generation config holds one too.

    Args:
        rows: of the batch, each prompt as often as `num_return_sequences` says.

    Raises:
        ValueError: names the reference, or the generation config's entry `lade`.
    """
    configured = reference_in(generation_config)
    reference = configured if reference is None else reference
    samples = getattr(generation_config, "num_return_sequences", None) or 1
    return check_reference(reference, config, model, rows // samples, samples)


def reference_in(generation_config: Any) -> Any:
    """What the generation config's entry `lade` holds, if there is one.

    Raises:
        ValueError: it is no dict, or has an unknown key.
    """
    entry = getattr(generation_config, "lade", None)
    if entry is None:
        return None
    if not isinstance(entry, dict):
        raise ValueError(f"lade={entry!r} in the generation config: allowed is {{{KEY!r}: token ids}}")
    unknown = [key for key in entry if key != KEY]
    if unknown:
        names = ", ".join(map(repr, unknown))
        raise ValueError(f"lade={{{names}: ...}} in the generation config: the only key allowed is {KEY!r}")
    return entry.get(KEY)


def check_reference(
    reference: Any, config: LookaheadConfig, model: Any, prompts: int | None = None, samples: int = 1
) -> References | None:
    """`references_of`, and an error where the mode has no use for a reference, or the model cannot read it."""
    if reference is None:
        return None
    check_mode("reference", config)
    texts = references_of(reference, prompts, samples)
    highest = max((max(text, default=0) for text in texts or () if text is not None), default=0)
    if highest >= (size := readable(unwrapped(model))):
        raise ValueError(f"reference must hold token ids from 0 to {size - 1}, got {highest}")
    return texts


def check_mode(name: str, config: LookaheadConfig) -> None:
    """An error where the argument of this name is given in the paper's mode."""
    mode = config.settled().mode
    if mode != "auto":
        raise ValueError(f"{name} is for mode='auto', not for mode={mode!r}")


def references_of(reference: Any, prompts: int | None = None, samples: int = 1) -> References | None:
    """One text per row, or `None` where there is none.

    Args:
        reference: token ids (a list or a 1-D tensor) for all rows, or a list with one such text or `None` per prompt.
        prompts: how many; `None` where it is not known yet.
        samples: rows of each prompt, side by side.

    Raises:
        ValueError: it is neither, or has another number of texts.
    """
    if reference is None:
        return None
    if isinstance(reference, torch.Tensor):
        reference = reference.tolist()
    if not isinstance(reference, list | tuple):
        kind = type(reference).__name__
        raise ValueError(f"reference of type {kind}: allowed are token ids, or a list with token ids per prompt")
    texts = [reference] if _is_text(reference) else [_listed(item) for item in reference]
    if not all(text is None or _is_text(text) for text in texts):
        raise ValueError("reference holds something else than token ids: allowed are integers of at least 0")
    if prompts is None:
        return texts
    if len(texts) not in (1, prompts):
        raise ValueError(f"reference of {len(texts)} texts: allowed is one, or one for each of the {prompts} prompts")
    if len(texts) == 1:
        texts *= prompts
    return [text for text in texts for _ in range(samples)]


def _listed(item: Any) -> Any:
    return item.tolist() if isinstance(item, torch.Tensor) else item


def _is_text(item: Any) -> bool:
    return isinstance(item, list | tuple) and all(type(token) is int and token >= 0 for token in item)
