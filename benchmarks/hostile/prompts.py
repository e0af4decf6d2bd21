"""Prompts of a case, as keyword arguments of `generate`. Knows only the vocabulary of a model."""

from __future__ import annotations

import random
from typing import Any

import torch
from families import PAD
from torch import Tensor

from hostile.case import Case
from hostile.images import inputs, with_images
from hostile.subjects import SEEING, TRAINED, never_said, tokenizer

FIRST_WORD = 3
LAYOUTS = ("left", "no-mask", "right", "holes", "bool-mask", "int32")
TEXTS = ("random", "repeated", "written")
PERIOD = 4  # tokens in a period of a repeated text
WRITTEN = {
    "stories260K": "Once upon a time, there was a little girl named Lily. She had a big red ball. One day, ",
    "lade-code-8M-draft": """def add(a, b):
    return a + b


def is_even(number):
    return number % 2 == 0


def total(numbers):
    return """,
}


def prompts(case: Case, vocabulary: int) -> dict[str, Tensor]:
    """New tensors with the case's prompts, so that a call may change them."""
    draws = case.draws("prompts")
    rows = [_text(case, draws, length, vocabulary) for length in case.lengths]
    never = never_said(case.model)
    rows = [[FIRST_WORD if token in never else token for token in row] for row in rows]
    if case.model not in SEEING:
        return laid_out(rows, case.layout, draws)
    found = laid_out([with_images(case, draws, row) for row in rows], case.layout, draws)
    return found | inputs(case, found["input_ids"])


def laid_out(rows: list[list[int]], layout: str, draws: random.Random) -> dict[str, Tensor]:
    """A padded batch of texts."""
    width = max(map(len, rows))
    ids, mask = torch.full((len(rows), width), PAD), torch.zeros(len(rows), width, dtype=torch.long)
    for row, text in enumerate(rows):
        place = slice(0, len(text)) if layout == "right" else slice(width - len(text), width)
        ids[row, place], mask[row, place] = torch.tensor(text), 1
    if layout == "holes":
        mask[:, draws.randrange(width - 1) if width > 1 else 0] = 0
        mask[:, -1] = 1
    if layout == "no-mask":
        return {"input_ids": ids}
    types = {"bool-mask": (torch.long, torch.bool), "int32": (torch.int32, torch.long)}
    id_type, mask_type = types.get(layout, (torch.long, torch.long))
    return {"input_ids": ids.to(id_type), "attention_mask": mask.to(mask_type)}


def words(draws: random.Random, count: int, vocabulary: int) -> list[int]:
    return [draws.randrange(FIRST_WORD, vocabulary) for _ in range(count)]


def _text(case: Case, draws: random.Random, length: int, vocabulary: int) -> list[int]:
    if case.text == "repeated":
        part = words(draws, PERIOD, vocabulary)
        return (part * length)[:length]
    if case.text == "written" and case.model in TRAINED:
        written: list[int] = tokenizer(case.model)(WRITTEN[case.model])["input_ids"]
        start = draws.randrange(max(1, len(written) - length))
        return (written[start:] + written)[:length]
    return words(draws, length, vocabulary)


def vocabulary_of(model: Any) -> int:
    """Ids that have an embedding."""
    table = model.get_input_embeddings()
    own = model.config.get_text_config(decoder=True).vocab_size
    return min(own, getattr(table, "num_embeddings", own))
