"""Logits processors and stopping criteria of transformers that may run row by row, or on many nodes at once.

A class that is not in these tables, such as a user's, runs in batches of one only.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from transformers import LogitsProcessorList
from transformers.generation import logits_process, stopping_criteria

from lade.target.call import Call


def _classes(module: Any, *names: str) -> frozenset[type]:
    return frozenset(getattr(module, name) for name in names if hasattr(module, name))


# Processors that read the scores of a row only.
TEXT_BLIND = _classes(
    logits_process,
    *("TemperatureLogitsWarper", "TopKLogitsWarper", "TopPLogitsWarper", "MinPLogitsWarper", "TypicalLogitsWarper"),
    *("EpsilonLogitsWarper", "EtaLogitsWarper", "InfNanRemoveLogitsProcessor", "LogitNormalization"),
    "SuppressTokensLogitsProcessor",
)
# Of these, such as raise where a score is NaN or infinite, which those of a draft may be that is never followed.
PARTICULAR = _classes(logits_process, "EtaLogitsWarper")
# Processors that read the scores, tokens and length of a row only.
ROW_PURE = TEXT_BLIND | _classes(
    logits_process,
    *("RepetitionPenaltyLogitsProcessor", "NoRepeatNGramLogitsProcessor", "SequenceBiasLogitsProcessor"),
    *("NoBadWordsLogitsProcessor", "MinLengthLogitsProcessor", "MinNewTokensLengthLogitsProcessor"),
    *("ForcedBOSTokenLogitsProcessor", "ForcedEOSTokenLogitsProcessor", "ExponentialDecayLengthPenalty"),
    *("SuppressTokensAtBeginLogitsProcessor", "TopHLogitsWarper"),
)
# Criteria that read token ids and their number only, so that the host can decide.
HOST_CRITERIA = _classes(stopping_criteria, "MaxLengthCriteria", "EosTokenCriteria")
# Criteria that read the tokens of a row only, and no scores.
ROW_PURE_CRITERIA = HOST_CRITERIA | _classes(stopping_criteria, "MaxTimeCriteria", "StopStringCriteria")
# Attributes of processors with one entry per row of the batch.
PER_ROW = {"RepetitionPenaltyLogitsProcessor": "prompt_ignore_length"}


def leaves_alone(call: Call, streamer: Any, forced: Any = None) -> bool:
    """Whether a call runs no code but lade's and transformers' between its forwards, which could change the model.

    Args:
        forced: as of `Request`.
    """
    kinds = {type(each) for each in (*call.processors, *call.criteria)} - ROW_PURE - ROW_PURE_CRITERIA
    return _is_of(("lade",), *kinds, forced) and is_stock(streamer)


def is_stock(streamer: Any) -> bool:
    """Whether a streamer is lade's or transformers', which draw no random numbers, or `None`."""
    return _is_of(("lade", "transformers"), streamer)


def _is_of(packages: Sequence[str], *things: Any) -> bool:
    """Whether each class, object or function was defined in one of these; of a user's class, it was not."""
    modules = [str(getattr(thing, "__module__", None)) for thing in things if thing is not None]
    return all(module.partition(".")[0] in packages for module in modules)


def processors_of_row(processors: LogitsProcessorList, row: int, rows: int) -> LogitsProcessorList:
    """The processors for one row of a batch; in a batch of one these are the processors themselves."""
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
