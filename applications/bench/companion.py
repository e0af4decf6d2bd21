"""The second model of a run: it drafts for the model, or is contrasted with it. Knows no method."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lade.models import load

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(eq=False)
class Companion:
    """A second model, and the tokenizers of both.

    Attributes:
        mismatch: how its tokenizer differs from the target's; None where token ids mean the same.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    target_tokenizer: PreTrainedTokenizerBase
    mismatch: str | None = field(init=False)
    _copy: PreTrainedModel | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.mismatch = tokenizer_mismatch(self.target_tokenizer, self.tokenizer)

    def copied(self) -> PreTrainedModel:
        """A copy for a caller that changes it; made once."""
        if self._copy is None:
            self._copy = deepcopy(self.model)
        return self._copy


def tokenizer_mismatch(target: PreTrainedTokenizerBase, other: PreTrainedTokenizerBase) -> str | None:
    """How many token ids mean the same to both; None where all do."""
    own, theirs = target.get_vocab(), other.get_vocab()
    if own == theirs:
        return None
    shared = len(own.items() & theirs.items())
    return f"another tokenizer: of its {len(theirs):,} tokens and the model's {len(own):,} only {shared:,} are the same"


def load_companion(
    name: str, quant: str | None, loading: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase
) -> Companion:
    """Loaded with the model's settings, except for quantisation.

    Raises:
        ValueError: it cannot be loaded this way; names it.
        OSError: it does not exist.
        ImportError: the package that quantises is not installed.
    """
    try:
        model, own = load(name, **{**loading, "quant": quant})
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    return Companion(model, own, tokenizer)
