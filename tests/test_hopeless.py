"""Text that becomes unpredictable in the middle, on a model that ships: drafting stops within 32 tokens."""

from collections.abc import Sequence

import pytest
import torch
from costs import fix_costs
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedModel, PreTrainedTokenizerBase

import lade
from lade.core.tree import Draft
from lade.target.model import HFTarget
from lade.target.outputs import Outputs

PROMPT = "Once upon a time, there was a little girl named Lily. She loved to play outside."
TURN, STOPS, END = 120, 32, 240  # new tokens: predictable ones, then those until drafting must stop, and all


class TurnsUniform(LogitsProcessor):
    """From a length on, all tokens are equally likely, whatever the model predicts."""

    def __init__(self, length: int, seed: int) -> None:
        self.length, self.seed = length, seed

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if input_ids.shape[1] < self.length:
            return scores
        generator = torch.Generator().manual_seed(1000 * self.seed + input_ids.shape[1])
        return torch.rand(scores.shape, generator=generator).index_fill_(1, torch.tensor([1, 2]), 0.0)


@pytest.fixture
def forwards(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Per forward after the prefill: the position of its root, and its number of tokens."""
    seen: list[tuple[int, int]] = []
    forward = HFTarget.forward

    def noted(self: HFTarget, slots: Sequence[int], drafts: Sequence[Draft]) -> Outputs:
        seen.append((self.positions[0], len(drafts[0])))
        return forward(self, slots, drafts)

    monkeypatch.setattr(HFTarget, "forward", noted)
    fix_costs(monkeypatch)
    return seen


def mean_width(forwards: Sequence[tuple[int, int]], first: int, last: int) -> float:
    widths = [tokens for position, tokens in forwards if first <= position < last]
    return sum(widths) / len(widths)


@pytest.mark.parametrize("warm", [False, True], ids=("cold", "warm"))
def test_unpredictable_text_is_decoded_one_token_at_a_time(
    forwards: list[tuple[int, int]],
    warm: bool,
    shipped: tuple[PreTrainedModel, PreTrainedTokenizerBase],
    shipped_and_warm: PreTrainedModel,
) -> None:
    model = shipped_and_warm if warm else shipped[0]
    ids = shipped[1](PROMPT, return_tensors="pt").input_ids
    sources = ("suffix", "window", "recycled", *(["warm"] if warm else []))
    before, after = [], []
    for seed in range(4):
        forwards.clear()
        length = ids.shape[1] + TURN
        lade.generate(
            model,
            ids,
            config=lade.LookaheadConfig(mode="auto", sources=sources),
            logits_processor=LogitsProcessorList([TurnsUniform(length, seed)]),
            max_new_tokens=END,
            do_sample=False,
        )
        before.append(mean_width(forwards, 0, length))
        after.append(mean_width(forwards, length + STOPS, length + END))
    assert min(before) > 4
    assert sum(after) / len(after) <= 1.05
