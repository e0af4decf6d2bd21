"""What stopping criteria are called with."""

from typing import Any

import pytest
import torch
from sidebyside import encode, story
from torch import Tensor
from torch.testing import assert_close
from transformers import MaxLengthCriteria, StoppingCriteria, StoppingCriteriaList

import lade
from lade.core.request import Request
from lade.engine.scores import Record
from lade.engine.stopping import Criteria
from lade.engine.text import Text


class Keeping(StoppingCriteria):
    """Keeps the scores of every call; ends no text."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        self.seen.append(scores)
        return torch.zeros(len(input_ids), dtype=torch.bool)


@pytest.mark.parametrize("asked", [False, True])
def test_a_user_s_criterion_gets_the_scores_so_far(asked: bool) -> None:
    """One tuple per token, which the criterion may keep; `None` where scores are not returned."""
    kwargs = {"do_sample": False, "max_new_tokens": 12, "return_dict_in_generate": True, "output_scores": asked}
    seen = []
    for generate in (story()[0].generate, lambda **kwargs: lade.generate(story()[0], **kwargs)):
        criterion = Keeping()
        generate(**encode(), **kwargs, stopping_criteria=StoppingCriteriaList([criterion]))
        seen.append(criterion.seen)
    assert lade.last_stats().fallback is None
    theirs, ours = seen
    if not asked:
        assert ours == theirs == [None] * 12
        return
    assert [len(scores) for scores in ours] == [len(scores) for scores in theirs] == list(range(1, 13))
    assert all(type(scores) is tuple for scores in ours)
    assert_close(ours[-1], theirs[-1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kept", [False, True])
def test_scores_are_handed_over_only_where_a_criterion_may_read_them(
    kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tuple per token copies all scores so far; the criteria of transformers named in the table read none."""
    seen: list[Any] = []
    call = MaxLengthCriteria.__call__
    monkeypatch.setattr(
        MaxLengthCriteria, "__call__", lambda self, ids, scores: seen.append(scores) or call(self, ids, scores)
    )
    record = Record(wants_scores=True, wants_logits=False)
    record.scores = [[torch.zeros(1, 3)]]
    criteria = StoppingCriteriaList([MaxLengthCriteria(9), *([Keeping()] if kept else [])])
    ends = Criteria(criteria, Text(torch.tensor([[1, 2]])), record)
    assert not ends(Request(0, [1, 2], 1, 9))
    assert [type(scores) for scores in seen] == [tuple if kept else type(None)]
