"""Warm tables with random predictions, and corpora with texts like a case's prompts, in lade's file formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import lade
from hostile.case import Case
from hostile.prompts import prompts, vocabulary_of, words
from lade.facts.vocabulary import readable
from lade.memory.context import CONTEXT
from lade.memory.warm.file import store, table_file
from lade.memory.warmtable import WarmContexts, WarmTable

TOP, ENDINGS = 4, 50  # entries of a row; contexts


def keep_table(case: Case, model: Any) -> Path:
    """Store a table of random predictions in the cache folder; returns its path."""
    path = table_file(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    store(path, random_table(case, readable(model)), "")
    return path


def keep_corpus(case: Case, model: Any, folder: Path) -> Path:
    """Store a corpus in a folder: the case's prompts, each followed by other words, and repeated; returns its path."""
    path, draws, size = folder / f"corpus{case.index}.safetensors", case.draws("corpus"), vocabulary_of(model)
    texts = [2 * [*row, *words(draws, 6, size)] for row in prompts(case, size)["input_ids"].tolist()]
    lade.Corpus([*texts, words(draws, 30, size)]).save(path)
    return path


def random_table(case: Case, size: int) -> WarmTable:
    generator = torch.Generator().manual_seed(case.draws("table").randrange(1 << 30))
    endings = torch.randint(0, size, (ENDINGS, CONTEXT), generator=generator, dtype=torch.int32)
    endings = torch.unique(endings, dim=0)
    contexts = WarmContexts(endings, *_predictions(len(endings), size, generator))
    return WarmTable(*_predictions(size, size, generator), contexts, 1.0)


def _predictions(rows: int, size: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """[rows, TOP] tokens in decreasing order of probability, and their probabilities."""
    tokens = torch.randint(0, size, (rows, TOP), generator=generator, dtype=torch.int32)
    likely = torch.rand(rows, TOP, generator=generator).sort(descending=True).values / TOP
    return tokens, likely
