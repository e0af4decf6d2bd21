"""Law 1 as code: a text is plain decoding's text, and a float32 difference counts as none only at a tie.

A tie is a position where the two likeliest tokens of one-token decoding are less than 1e-4 apart; every one is printed
and counted, and there may be one per 10,000 compared tokens.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

TIE = 1e-4
TOKENS_PER_TIE = 10_000


@dataclass(frozen=True)
class PlainText:
    """What plain decoding wrote, and how sure it was of each token."""

    sequences: Tensor  # [B, P + T]
    gaps: Tensor  # [B, T] between the two highest scores
    exact: bool  # float64: no ties are granted


@dataclass
class Identity:
    """Compares texts and keeps the tally of a whole test session."""

    tokens: int = 0
    ties: list[str] = field(default_factory=list)

    def check(self, ours: Tensor, plain: PlainText) -> None:
        """Fail where a row of `ours` leaves the plain text other than at a tie; after a tie it may go its own way."""
        prompt = plain.sequences.shape[1] - plain.gaps.shape[1]
        width = min(ours.shape[1], plain.sequences.shape[1])
        differs = ours[:, :width] != plain.sequences[:, :width]  # [B, width]
        for row in differs.any(1).nonzero().flatten().tolist():
            self._judge(row, int(differs[row].int().argmax()) - prompt, ours, plain)
        assert differs.any() or ours.shape == plain.sequences.shape
        self.tokens += plain.gaps.numel()

    def _judge(self, row: int, index: int, ours: Tensor, plain: PlainText) -> None:
        gap = plain.gaps[row, index].item() if index >= 0 else float("inf")
        finding = f"row {row} leaves the plain text at new token {index}, where the top-2 gap is {gap:.2e}"
        tokens = plain.gaps.shape[1]
        texts = f"\nplain {plain.sequences[row, -tokens:].tolist()}\nours  {ours[row, -tokens:].tolist()}"
        assert not plain.exact, finding + texts
        assert gap < TIE, finding + texts
        print(f"tie: {finding}")
        self.ties.append(finding)

    def assert_ties_are_rare(self) -> None:
        allowed = -(-self.tokens // TOKENS_PER_TIE)
        assert len(self.ties) <= allowed, f"{len(self.ties)} ties in {self.tokens} tokens: {self.ties}"


def plain_text(model: PreTrainedModel, **inputs: Any) -> PlainText:
    """Decode plainly and greedily; in inference mode, which computes the same and takes less time."""
    with torch.inference_mode():
        out = model.generate(**inputs, do_sample=False, return_dict_in_generate=True, output_scores=True)
        best = torch.stack(out.scores, dim=1).topk(2).values  # [B, T, 2]
        gaps = (best[..., 0] - best[..., 1]).nan_to_num()
    return PlainText(out.sequences.clone(), gaps.clone(), model.dtype == torch.float64)
