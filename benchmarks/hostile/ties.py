"""Whether a text differs from plain decoding's at a near-tie, where float32 rounding decides.

Greedy: the top-2 gap of one-token decoding is less than 1e-4. Sampled: the same for the two tokens' probabilities over
their noise. Never for float64.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hostile.calls import CallInputs, plainly
from hostile.case import Case
from hostile.outcome import CallOutcome

TIE = 1e-4


def near_tie(
    case: Case, model: PreTrainedModel, ours: CallOutcome, plain: CallOutcome, given: CallInputs
) -> str | None:
    """A line about the near-tie, or `None` if the texts differ for another reason.

    Args:
        given: new arguments of the call.
    """
    one, other = ours.sequences, plain.sequences
    if case.dtype != "float32" or one is None or other is None or one.shape[0] != other.shape[0]:
        return None
    width = min(one.shape[1], other.shape[1])
    places = (one[:, :width] != other[:, :width]).nonzero()
    if not len(places):
        return _near_a_cut(case, ours, plain)
    scores = _scores(case, model, given)
    first: dict[int, int] = {}
    for row, place in places.tolist():
        first.setdefault(row, place)
    gaps = [
        _gap(case, scores, row, place - (other.shape[1] - len(scores)), (int(one[row, place]), int(other[row, place])))
        for row, place in first.items()
    ]
    if not gaps or max(gaps) >= TIE:
        return None
    return f"near-tie: {max(gaps):.1e} between two tokens"


def _near_a_cut(case: Case, ours: CallOutcome, plain: CallOutcome) -> str | None:
    """For equal texts: whether warpers keep one more token, within the tie of the last one kept."""
    ours_all, plain_all = (getattr(each.result, "scores", None) for each in (ours, plain))
    if case.greedy or not ours_all or not plain_all:
        return None
    gaps = [gap for one, other in zip(ours_all, plain_all, strict=False) for gap in _cut_gaps(one, other)]
    return f"near-tie: {max(gaps):.1e} from the last token that is kept" if gaps and max(gaps) < TIE else None


def _cut_gaps(one: Tensor, other: Tensor) -> list[float]:
    """For every token that one side keeps, its distance to the lowest that both keep."""
    kept, alone = one.isfinite() & other.isfinite(), one.isfinite() ^ other.isfinite()
    values = torch.where(one.isfinite(), one, other)
    lowest = values.masked_fill(~kept, torch.inf).min(-1, keepdim=True).values
    return [float(gap) for gap in (values - lowest).abs()[alone]]


def _scores(case: Case, model: PreTrainedModel, given: CallInputs) -> tuple[Tensor, ...]:
    given.arguments |= {"return_dict_in_generate": True, "output_scores": True}
    result: Any = plainly(case, model, given).result
    return tuple(result.scores or ()) if result is not None and hasattr(result, "scores") else ()


def _gap(case: Case, scores: tuple[Tensor, ...], row: int, index: int, tokens: tuple[int, int]) -> float:
    if not 0 <= index < len(scores):
        return float("inf")
    best = scores[index][row].float()
    if not case.greedy:
        best = (best.softmax(-1) / _noise(case, scores, index)[row]).log()
    gap = float((best[tokens[0]] - best[tokens[1]]).abs())
    return gap if gap == gap else float("inf")


def _noise(case: Case, scores: tuple[Tensor, ...], index: int) -> Tensor:
    """[B, V] exponential noise of plain sampling at this token."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(case.draws("seed").randrange(1 << 30))
        for step in range(index + 1):
            noise = torch.empty_like(scores[step], dtype=torch.float32).exponential_(1)
    return noise
