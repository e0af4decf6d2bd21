"""The second model of a run: what drafts for the model, or is contrasted with it. Knows no method."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lade.models import load

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True, eq=False)
class Companion:
    """A second model, and the tokenizers of both."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    target_tokenizer: PreTrainedTokenizerBase

    @cached_property
    def stranger(self) -> str | None:
        """That it has another tokenizer than the target, and how different; None where token ids mean the same."""
        own, theirs = self.target_tokenizer.get_vocab(), self.tokenizer.get_vocab()
        if own == theirs:
            return None
        shared = len(own.items() & theirs.items())
        return (
            f"another tokenizer: of its {len(theirs):,} tokens and the model's {len(own):,} "
            f"only {shared:,} are the same"
        )

    @cached_property
    def spare(self) -> PreTrainedModel:
        """A copy for whoever changes it."""
        return deepcopy(self.model)


def load_companion(
    name: str, quant: str | None, loading: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase
) -> Companion:
    """Loaded as the model is, but for its quantisation.

    Raises:
        ValueError: it cannot be loaded so; names it.
        OSError: it is not there.
        ImportError: what quantises is not installed.
    """
    try:
        model, own = load(name, **{**loading, "quant": quant})
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    return Companion(model, own, tokenizer)
