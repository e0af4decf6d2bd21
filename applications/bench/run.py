"""One call of one contender: its texts and measurements. Knows no prompt and no method by name."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

import lade
from lade.applications.bench.contenders import Contender
from lade.measure.forwards import ForwardCounter, Forwards
from lade.weights.packing import has_packed_weights


@dataclass(frozen=True)
class Batch:
    """B prompts side by side, left-padded."""

    rows: tuple[tuple[int, ...], ...]
    ids: Tensor  # [B, P]
    mask: Tensor  # [B, P], 0 on padding


@dataclass(frozen=True)
class Run:
    """The result of one call."""

    texts: tuple[tuple[int, ...], ...]  # new tokens of each row, up to its end
    forwards: Forwards
    stats: lade.GenerationStats | None


def padded(rows: Sequence[Sequence[int]], pad: int, device: torch.device) -> Batch:
    width = max(map(len, rows))
    ids = [[pad] * (width - len(row)) + list(row) for row in rows]
    mask = [[0] * (width - len(row)) + [1] * len(row) for row in rows]
    return Batch(tuple(map(tuple, rows)), torch.tensor(ids, device=device), torch.tensor(mask, device=device))


def run_once(
    model: PreTrainedModel,
    contender: Contender,
    batch: Batch,
    arguments: dict[str, Any],
    seed: int,
    references: Sequence[Sequence[int]] | None = None,
) -> Run:
    """Decode a batch. `references`: reference texts for the contender, one per row."""
    torch.manual_seed(seed)
    if contender.options.pack != has_packed_weights(model):
        (lade.pack_weights if contender.options.pack else lade.unpack_weights)(model)
    if references is not None:
        arguments = arguments | {"reference": references if len(references) > 1 else references[0]}
    with ForwardCounter(model, peak=True) as counter:
        sequences = contender.decode(model, input_ids=batch.ids, attention_mask=batch.mask, **arguments)
    ends = set(arguments["eos_token_id"] or ())
    texts = tuple(up_to_end(text, ends) for text in sequences[:, batch.ids.shape[1] :].tolist())
    return Run(texts, counter.result(), lade.last_stats() if contender.method.has_stats else None)


def up_to_end(text: Sequence[int], ends: Collection[int]) -> tuple[int, ...]:
    """Without the padding after a row's end; the EOS token stays."""
    last = next((index for index, token in enumerate(text) if token in ends), len(text))
    return tuple(text[: last + 1])
