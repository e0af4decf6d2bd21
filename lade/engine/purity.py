"""Which of transformers' processors and criteria may be asked row by row, or for many nodes at once. One table each.

A class that is not named here, unknown user classes included, takes part in batches of one only.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from transformers import LogitsProcessorList
from transformers.generation import logits_process, stopping_criteria


def _classes(module: Any, *names: str) -> frozenset[type]:
    return frozenset(getattr(module, name) for name in names if hasattr(module, name))


# Processors whose outcome depends on the scores alone, row by row.
TEXT_BLIND = _classes(
    logits_process,
    *("TemperatureLogitsWarper", "TopKLogitsWarper", "TopPLogitsWarper", "MinPLogitsWarper", "TypicalLogitsWarper"),
    *("EpsilonLogitsWarper", "EtaLogitsWarper", "InfNanRemoveLogitsProcessor", "LogitNormalization"),
    "SuppressTokensLogitsProcessor",
)
# Processors that treat every row of a batch by itself, from its own tokens and its own length.
ROW_PURE = TEXT_BLIND | _classes(
    logits_process,
    *("RepetitionPenaltyLogitsProcessor", "NoRepeatNGramLogitsProcessor", "SequenceBiasLogitsProcessor"),
    *("NoBadWordsLogitsProcessor", "MinLengthLogitsProcessor", "MinNewTokensLengthLogitsProcessor"),
    *("ForcedBOSTokenLogitsProcessor", "ForcedEOSTokenLogitsProcessor", "ExponentialDecayLengthPenalty"),
    *("SuppressTokensAtBeginLogitsProcessor", "TopHLogitsWarper"),
)
# Criteria that look at nothing but token ids and their number, so that the host can decide.
HOST_CRITERIA = _classes(stopping_criteria, "MaxLengthCriteria", "EosTokenCriteria")
ROW_PURE_CRITERIA = HOST_CRITERIA | _classes(stopping_criteria, "MaxTimeCriteria", "StopStringCriteria")
# Settings of a processor that hold one entry per row of the batch.
PER_ROW = {"RepetitionPenaltyLogitsProcessor": "prompt_ignore_length"}


def processors_of_row(processors: LogitsProcessorList, row: int, rows: int) -> LogitsProcessorList:
    """The processors as one row of a batch sees them; in a batch of one they are used as they are."""
    if rows == 1:
        return processors
    return LogitsProcessorList(_of_row(processor, row) for processor in processors)


def _of_row(processor: Any, row: int) -> Any:
    name = PER_ROW.get(type(processor).__name__)
    values = getattr(processor, name, None) if name is not None else None
    if name is None or not isinstance(values, torch.Tensor):
        return processor
    own = copy.copy(processor)
    setattr(own, name, values[row : row + 1])
    return own
