"""Top-p filtering without a sort of the vocabulary: the same scores, to the last bit, as transformers' warper gives.

The kept tokens are the most likely ones until their probabilities add up to p (nucleus sampling, Holtzman et al. 2019,
arXiv 1904.09751). They are found among the top scores, of which first few and then more are looked at, unless rounding
or the order of equal scores could decide which are kept: then transformers' own code does. On a CPU (AMD EPYC) a sort
takes 4 of the 5.5 ms in which a token is sampled from 49,152. M rows, V vocabulary.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from operator import neg
from typing import Any

import numpy as np
import torch
from transformers import LogitsProcessorList, TopPLogitsWarper

LARGEST = 64, 512  # top scores that are looked at
MARGIN = 1e-4  # of 1 - p: what rounding may do to the warper's sums; 1e-6 was the most seen, with 262,144 tokens
SMALLEST = 1e-3  # 1 - p below which the margin does not shrink: sums here are exact to 1e-7


class Nucleus:
    """In place of a warper, on a CPU.

    Args:
        warper: transformers' own.
    """

    def __init__(self, warper: TopPLogitsWarper) -> None:
        self._warper = warper

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """[M, V] scores, all but those of the kept tokens replaced."""
        least = self._least(scores)
        unsure = [row for row, score in enumerate(least) if score is None]
        if len(unsure) == len(least):
            return self._warped(input_ids, scores)
        bounds = np.array([[-math.inf if score is None else score] for score in least], np.float32)
        kept = scores.masked_fill(scores < torch.from_numpy(bounds), self._warper.filter_value)
        if unsure:
            kept[unsure] = self._warped(input_ids, scores[unsure])
        return kept

    def _warped(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        warped: torch.Tensor = self._warper(input_ids, scores)
        return warped

    def _least(self, scores: torch.Tensor) -> list[float | None]:
        """Of each row the smallest score of the kept tokens; `None` where that is not sure."""
        rows, vocabulary = scores.shape
        least: list[float | None] = [None] * rows
        if scores.dtype != torch.float32 or vocabulary <= LARGEST[0]:
            return least
        largest = scores.amax(-1, keepdim=True)
        whole = (scores - largest).exp_().sum(-1, dtype=torch.float64).tolist()
        left = [row for row, total in enumerate(whole) if math.isfinite(total)]
        for number in LARGEST:
            if left and vocabulary > number:
                some = scores if len(left) == rows else scores[left]
                top = some.topk(number).values.numpy().astype(np.float64)
                shares = np.exp(top - top[:, :1]) / np.array([[whole[row]] for row in left])
                rest = 1 - (shares.cumsum(1) - shares)  # each token's probability and those of all less likely ones
                for row, *known in zip(left, rest.tolist(), top.tolist(), strict=True):
                    least[row] = self._least_of(*known)
                left = [row for row in left if least[row] is None]
        return least

    def _least_of(self, rest: Sequence[float], scores: Sequence[float]) -> float | None:
        """The same of one row.

        Args:
            rest: probability of each top token and all less likely ones, descending.
            scores: of the top tokens.
        """
        bound, last = 1 - self._warper.top_p, len(scores) - 1
        kept = bisect_left(rest, -bound, key=neg)  # those whose rest is more
        if not 0 < kept <= last or min(rest[kept - 1] - bound, bound - rest[kept]) <= MARGIN * max(bound, SMALLEST):
            return None
        kept = max(kept, self._warper.min_tokens_to_keep)
        if kept > last or scores[kept - 1] == scores[kept]:  # the sort decides which of equal scores is kept
            return None
        return scores[kept - 1]


def without_sort(processors: Any, device: torch.device) -> Any:
    """The processors of one row, with top-p filtering by `Nucleus` where scores lie on a CPU."""
    if device.type != "cpu" or not any(type(each) is TopPLogitsWarper for each in processors):
        return processors
    return LogitsProcessorList(Nucleus(each) if type(each) is TopPLogitsWarper else each for each in processors)
