"""Top-p filtering without a sort of the vocabulary: the same scores, to the last bit, as transformers' warper gives.

The kept tokens are the most likely ones until their probabilities add up to p (nucleus sampling, Holtzman et al. 2019,
arXiv 1904.09751). They are found among the `LARGEST` top scores, unless rounding or the order of equal scores could
decide which are kept: then transformers' own code does. On a CPU (AMD EPYC) a sort takes 4 of the 5.5 ms in which a
token is sampled from 49,152. V vocabulary.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from transformers import LogitsProcessorList, TopPLogitsWarper

LARGEST = 512  # top scores that are looked at
MARGIN = 1e-4  # of 1 - p: what rounding may do to the warper's sums; 1e-6 was the most seen, with 262,144 tokens
SMALLEST = 1e-3  # 1 - p below which the margin does not shrink: sums here are exact to 1e-7


class Nucleus:
    """In place of a warper, for one row on a CPU.

    Args:
        warper: transformers' own.
    """

    def __init__(self, warper: TopPLogitsWarper) -> None:
        self._warper = warper

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """[1, V] float32 scores, all but those of the kept tokens replaced."""
        dropped = self._dropped(scores)
        if dropped is None:
            warped: torch.Tensor = self._warper(input_ids, scores)
            return warped
        return scores.masked_fill(dropped, self._warper.filter_value)

    def _dropped(self, scores: torch.Tensor) -> torch.Tensor | None:
        """[1, V] whether each score is replaced; `None` where that is not sure."""
        if len(scores) != 1 or scores.dtype != torch.float32 or scores.shape[-1] <= LARGEST:
            return None
        top = scores.topk(LARGEST).values
        whole = (scores - top[:, :1]).exp_().sum(dtype=torch.float64).item()
        if not math.isfinite(whole):
            return None
        values = top[0].numpy()
        kept = self._kept(np.exp(values.astype(np.float64) - values[0]) / whole)
        if kept is None or values[kept - 1] == values[kept]:  # the sort decides which of equal scores is kept
            return None
        return scores < float(values[kept - 1])

    def _kept(self, shares: np.ndarray) -> int | None:
        """How many tokens are kept; `None` where that is not sure.

        Args:
            shares: [LARGEST] probabilities, descending.
        """
        rest = 1 - (shares.cumsum() - shares)  # each token's probability and those of all less likely ones
        bound = 1 - self._warper.top_p
        kept = int((rest > bound).sum())
        if not 0 < kept < LARGEST:
            return None
        if min(rest[kept - 1] - bound, bound - rest[kept]) <= MARGIN * max(bound, SMALLEST):
            return None
        kept = max(kept, self._warper.min_tokens_to_keep)
        return kept if kept < LARGEST else None


def without_sort(processors: Any, device: torch.device) -> Any:
    """The processors of one row, with top-p filtering by `Nucleus` where scores lie on a CPU."""
    if device.type != "cpu" or not any(type(each) is TopPLogitsWarper for each in processors):
        return processors
    return LogitsProcessorList(Nucleus(each) if type(each) is TopPLogitsWarper else each for each in processors)
