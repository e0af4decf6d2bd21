"""Texts that an output may repeat: references, from an argument or from the generation config, and corpora."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch

from lade.base.arguments import check_path
from lade.base.shown import invalid, shown
from lade.base.wrappers import unwrapped
from lade.config.settings import LookaheadConfig
from lade.facts.vocabulary import readable
from lade.memory.corpusfile import Corpus, load_corpus
from lade.memory.hashing import Array

KEY = "reference"  # the one entry of `GenerationConfig(lade={...})`
References = list[Sequence[int] | None]


def references_for(
    references: References | None, generation_config: Any, config: LookaheadConfig, model: Any, prompts: int
) -> References | None:
    """One reference per prompt, from the argument, else from the generation config's entry `lade`.

    Args:
        references: of `references_of`, and checked.
        generation_config: the call's, or `None`.
        prompts: the number of prompts.

    Raises:
        ValueError: the entry or the number of texts is wrong.
    """
    configured = reference_in(generation_config)
    if references is None:
        references = references_of(configured)
        check_reference(references, config, model)
    if references is None or len(references) == prompts:
        return references
    if len(references) != 1:
        raise ValueError(
            f"reference must hold one text, or one for each of the {prompts} prompts, got {len(references)} texts"
        )
    return references * prompts


def reference_in(generation_config: Any) -> Any:
    """The reference in the generation config's entry `lade`, or `None`.

    Raises:
        ValueError: the entry is not a dict, or has an unknown key.
    """
    entry = getattr(generation_config, "lade", None)
    if entry is None:
        return None
    if not isinstance(entry, dict) or any(key != KEY for key in entry):
        raise invalid("lade in the generation config", f"{{{KEY!r}: token ids}}", entry)
    return entry.get(KEY)


def check_reference(references: References | None, config: LookaheadConfig, model: Any) -> None:
    """ValueError where the mode uses no references, or a token id is not in the model's vocabulary."""
    if references is None:
        return
    check_mode("reference", config)
    highest = max((max(text, default=0) for text in references if text is not None), default=0)
    if highest >= (size := readable(unwrapped(model))):
        raise ValueError(f"reference must hold token ids from 0 to {size - 1}, got {shown(highest)}")


def check_mode(name: str, config: LookaheadConfig) -> None:
    """ValueError, which names the argument, in the paper's mode."""
    mode = config.settled().mode
    if mode != "auto":
        raise invalid("mode", f"'auto' where {name} is given", mode)


def corpus_given(corpus: Any, config: LookaheadConfig, model: Any) -> Array | None:
    """The texts of an argument as drafting reads them; `None` where there are none.

    Args:
        corpus: a `lade.Corpus`, or the path of one.

    Raises:
        ValueError: it is something else, the mode uses none, or a token id is not in the model's vocabulary; errors of
            its file as of `load_corpus`.
    """
    if corpus is None:
        return None
    check_mode("corpus", config)
    vocabulary = readable(unwrapped(model))
    if isinstance(corpus, Corpus):
        corpus.check("corpus", vocabulary)
        return corpus.ints
    if not isinstance(corpus, str | os.PathLike):
        raise invalid("corpus", "a lade.Corpus, the path of one, or None", corpus)
    check_path("corpus", corpus)
    return load_corpus(corpus, vocabulary).ints


def references_of(reference: Any) -> References | None:
    """One text for all prompts, or one per prompt; `None` where there is none.

    Args:
        reference: token ids (a list or a 1-D tensor), or a list with such a text or `None` per prompt.

    Raises:
        ValueError: it is something else.
    """
    if reference is None:
        return None
    given = _listed(reference)
    if not isinstance(given, list | tuple):
        raise invalid("reference", "token ids (a list or a 1-D tensor), or a list of them per prompt", reference)
    texts = [given] if _is_text(given) else [_listed(item) for item in given]
    if not all(text is None or _is_text(text) for text in texts):
        raise ValueError(f"reference must hold token ids, which are integers of at least 0, got {shown(given)}")
    return texts


def _listed(item: Any) -> Any:
    return item.tolist() if isinstance(item, torch.Tensor) else item


def _is_text(item: Any) -> bool:
    return isinstance(item, list | tuple) and all(type(token) is int and token >= 0 for token in item)
