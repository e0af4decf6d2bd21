"""The objectives against what can be counted by hand: which tokens loop, and what unlikelihood does to them."""

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from lade.models.pretrained.objectives import CONTINUED, Objective, Unlooping, next_token, repeats, unlikelihood
from lade.models.pretrained.sizes import fresh_model

END = 0
ROWS = torch.arange(5, 45).view(2, 20)


def test_what_completes_a_four_gram_again_is_a_repeat() -> None:
    new = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 8, 9], [5, 5, 5, 5, 5, 5, END, 3, 3]])
    assert repeats(new, END).int().tolist() == [[0, 0, 0, 0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 1, 1, 0, 0, 0]]
    assert not repeats(torch.tensor([[5, 6, 7, END, 3, 3, 3, 3, 3]]), END).any()
    assert repeats(torch.tensor([[END], [END]]), END).tolist() == [[False], [False]]


def test_unlikelihood_is_minus_log_of_what_is_left_where_a_text_loops() -> None:
    """A model that writes one token for ever: from the fifth on, each repeats."""
    model = fresh_model("tiny", 64)
    with torch.no_grad():
        model.model.norm.weight.zero_()  # every logit is 0, the first token wins every tie
    model.config.eos_token_id = model.generation_config.eos_token_id = 63
    expected = -torch.log(torch.tensor(1 - 1 / 64)) * (CONTINUED - 4) / CONTINUED
    assert unlikelihood(model, ROWS).item() == pytest.approx(expected.item(), rel=1e-3)


def learn(model: LlamaForCausalLM, objective: Objective, rows: Tensor, steps: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(steps):
        objective(model, rows).backward()
        optimizer.step()
        optimizer.zero_grad()


def test_learning_to_unloop_takes_loops_out_of_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lade.models.pretrained.objectives.CONTINUED", 24)
    model, loops = fresh_model("tiny", 64, seed=1), torch.arange(5, 10).repeat(2, 8)
    learn(model, next_token, loops, 15)
    with torch.no_grad():
        before = float(unlikelihood(model, loops[:, :10]))
    assert before > 0.1
    learn(model, unlikelihood, loops[:, :10], 25)
    with torch.no_grad():
        assert float(unlikelihood(model, loops[:, :10])) < before / 2


def test_both_parts_count() -> None:
    model = fresh_model("tiny", 64, seed=1)
    with torch.no_grad():
        parts = next_token(model, ROWS) + 2 * unlikelihood(model, ROWS[::2, :64])
        assert torch.allclose(Unlooping(2.0)(model, ROWS), parts)


def test_a_weight_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="weight must be more than 0, got 0"):
        Unlooping(0)
