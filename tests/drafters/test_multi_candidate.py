"""How candidates are chosen from a draft model's logits."""

import pytest
import torch
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper

from lade.drafters.draft_model import fitted
from lade.drafters.multi_candidate import Drawn, Likeliest

LOGITS = torch.tensor([[0.0, 3.0, 1.0, 2.0], [5.0, -torch.inf, 4.0, -torch.inf]])
NOTHING = LogitsProcessorList()


def test_likeliest_first() -> None:
    assert Likeliest().choose(LOGITS, 2, False).tokens == [[1, 3], [0, 2]]
    assert Likeliest().choose(LOGITS, 1, False).tokens == [[1], [0]]
    assert Likeliest().choose(LOGITS, 9, False).tokens[0] == [1, 3, 2, 0]


@pytest.mark.parametrize("width", [1, 2])
def test_confidence_is_the_surest_candidates_probability(width: int) -> None:
    chosen = Likeliest().choose(LOGITS, width, True)
    assert chosen.confidence == pytest.approx(LOGITS.softmax(-1).max(-1).values.tolist())
    assert Likeliest().choose(LOGITS, width, False).confidence == []


def test_without_replacement_nothing_is_drawn_twice() -> None:
    torch.manual_seed(0)
    for _ in range(50):
        chosen = Drawn(NOTHING, replacement=False).choose(LOGITS, 3, False)
        assert len(set(chosen.tokens[0])) == 3
        assert sorted(chosen.tokens[1]) == [0, 2]  # there is no third one


def test_with_replacement_as_many_as_asked_for() -> None:
    torch.manual_seed(0)
    drawn = [Drawn(NOTHING, replacement=True).choose(LOGITS, 3, False).tokens for _ in range(50)]
    assert all(len(row) == 3 for tokens in drawn for row in tokens)
    assert any(len(set(tokens[0])) < 3 for tokens in drawn)


@pytest.mark.parametrize("replacement", [False, True], ids=("without", "with"))
def test_draws_follow_the_law_in_order(replacement: bool) -> None:
    """40,000 pairs; shares off by less than six standard deviations."""
    rows = 40_000
    law = torch.tensor([0.5, 0.3, 0.15, 0.05])
    torch.manual_seed(0)
    chosen = Drawn(NOTHING, replacement).choose(law.log().expand(rows, -1), 2, False)
    pairs = torch.tensor(chosen.tokens)
    for first in range(4):
        for second in range(4):
            left = law[second] if replacement else law[second] / (1 - law[first]) * (first != second)
            share = float(law[first] * left)
            found = ((pairs[:, 0] == first) & (pairs[:, 1] == second)).float().mean().item()
            assert abs(found - share) <= 6 * (share * (1 - share) / rows) ** 0.5
    assert chosen.laws is not None
    assert torch.allclose(chosen.laws[0], law)


def test_draws_are_warped_as_the_targets_are() -> None:
    warpers = LogitsProcessorList([TemperatureLogitsWarper(0.5), TopKLogitsWarper(2)])
    chosen = Drawn(warpers, replacement=False).choose(LOGITS, 4, True)
    assert chosen.laws is not None
    expected = torch.tensor([-torch.inf, 6.0, -torch.inf, 4.0]).softmax(-1)
    assert torch.allclose(chosen.laws[0], expected)
    assert set(chosen.tokens[0]) == {1, 3}
    assert chosen.confidence[0] == pytest.approx(expected.max().item())


def test_vocabularies_are_fitted() -> None:
    assert fitted(LOGITS, 3, 3).tolist() == LOGITS[:, :3].tolist()
    assert fitted(LOGITS, 6, 6)[:, 4:].tolist() == [[-torch.inf] * 2] * 2
    assert fitted(LOGITS, 3, 4).tolist() == [[*row[:3], -torch.inf] for row in LOGITS.tolist()]
