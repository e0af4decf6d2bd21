"""Answers of a model to prompts: what it says along them, where they end, and that neighbours do not matter."""

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from families import BRANCHABLE, BY_NAME, VOCAB, Family
from tiny import tiny_model
from transformers import MambaConfig, MambaForCausalLM, PreTrainedModel

from lade.memory.context import CONTEXT, NOTHING
from lade.memory.warm.answers import AnswerPlan, answer, answer_plan, joined
from lade.memory.warm.texts import WarmTexts

LENGTH, TOP = 4, 5
PROMPTS = [(9, 8, 7, 6, 5, 4), (3,), (1, 2), (5, 6, 7, 8, 9, 10, 11)]


def answered(model: PreTrainedModel, plan: AnswerPlan) -> WarmTexts:
    batches = [
        answer(model, plan, first, lambda done: None) for first in range(0, len(plan.prompts), plan.side_by_side)
    ]
    texts = batches[0]
    for batch in batches[1:]:
        texts = joined(texts, batch)
    return texts


def plan_for(model: PreTrainedModel, ends: Sequence[int] = (), side_by_side: int = 4) -> AnswerPlan:
    prompts = answer_plan(model, PROMPTS, TOP, LENGTH).prompts
    return AnswerPlan(TOP, LENGTH, side_by_side, prompts, tuple(ends))


def answers_of(texts: WarmTexts) -> list[list[int]]:
    """The tokens that the model chose, all but the last."""
    return [
        row[CONTEXT:][: int(counted.sum()) - 1]
        for row, counted in zip(texts.written.tolist(), texts.counted, strict=True)
    ]


@pytest.mark.compat
@pytest.mark.parametrize("family", BRANCHABLE, ids=lambda family: family.name)
@torch.no_grad()
def test_predictions_are_those_behind_the_prompt_and_the_answer(family: Family) -> None:
    model = tiny_model(family)
    plan = plan_for(model)
    assert plan.prompts == ((3,), (1, 2), (9, 8, 7, 6, 5, 4), (5, 6, 7, 8, 9, 10, 11))
    texts = answered(model, plan)
    assert texts.written.shape == (4, CONTEXT - 1 + LENGTH)
    for row, (prompt, tokens) in enumerate(zip(plan.prompts, answers_of(texts), strict=True)):
        assert len(tokens) == LENGTH - 1
        last = [*[NOTHING] * CONTEXT, *prompt][-CONTEXT:]
        assert texts.written[row].tolist() == [*last, *tokens]
        expected = model(input_ids=torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 :].softmax(-1)
        likely = texts.probabilities[row, CONTEXT - 1 :]
        torch.testing.assert_close(likely, expected.topk(TOP).values)
        torch.testing.assert_close(expected.gather(-1, texts.tokens[row, CONTEXT - 1 :].long()), likely)
    assert texts.counted[:, CONTEXT - 1 :].all()
    assert not texts.counted[:, : CONTEXT - 1].any()


def test_an_answer_ends_with_an_end_token() -> None:
    model = tiny_model(BY_NAME["llama"])
    free = answers_of(answered(model, plan_for(model)))
    end = free[2][2]
    ended = answered(model, plan_for(model, ends=[end]))
    for whole, tokens, counted in zip(free, answers_of(ended), ended.counted, strict=True):
        kept = whole.index(end) if end in whole else len(whole)
        assert tokens == whole[:kept]
        assert counted.sum() == kept + 1  # the end token was chosen too
    assert len(answers_of(ended)[2]) == 2


@pytest.mark.parametrize("side_by_side", [1, 3])
def test_neighbours_do_not_matter(side_by_side: int) -> None:
    model = tiny_model(BY_NAME["llama"])
    alone, beside = answered(model, plan_for(model, (), side_by_side)), answered(model, plan_for(model))
    assert torch.equal(alone.written, beside.written)
    torch.testing.assert_close(alone.probabilities, beside.probabilities)


def test_every_token_of_every_answer_is_reported_once() -> None:
    model, told = tiny_model(BY_NAME["llama"]), list[int]()
    end = answers_of(answered(model, plan_for(model)))[0][1]
    answer(model, plan_for(model, ends=[end]), 0, told.append)
    assert sum(told) == len(PROMPTS) * LENGTH
    assert min(told) >= 0


def test_equal_prompts_are_answered_once() -> None:
    model = tiny_model(BY_NAME["llama"])
    assert answer_plan(model, [[4, 5], [3], (4, 5)], TOP, LENGTH).prompts == ((3,), (4, 5))


@pytest.mark.parametrize(
    ("prompts", "length", "named"),
    [
        ([], 4, "prompts must be at least one list of token ids, none empty, got "),
        ([[1], []], 4, "prompts must be at least one list of token ids, none empty, got "),
        ([[1, VOCAB]], 4, f"prompts must be token ids below {VOCAB}, the size of the vocabulary, got "),
        ([[1, -1]], 4, f"prompts must be token ids below {VOCAB}, the size of the vocabulary, got "),
        ([[1]], 0, "length must be an integer of at least 1, got 0"),
        ([[1]], 17, "prompts must fit the model's 17 positions with their answers, got 18 tokens"),
    ],
)
def test_wrong_arguments_are_named(prompts: Any, length: int, named: str) -> None:
    model = copy.deepcopy(tiny_model(BY_NAME["llama"]))
    model.config.max_position_embeddings = 17
    with pytest.raises(ValueError, match=named):
        answer_plan(model, prompts, TOP, length)


def test_a_model_without_a_memory_is_refused() -> None:
    config = MambaConfig(vocab_size=VOCAB, hidden_size=8, state_size=4, num_hidden_layers=1, use_mambapy=False)
    model = MambaForCausalLM(config).eval()
    with pytest.raises(ValueError, match="model must be a model with a KV cache, got MambaForCausalLM"):
        answer(model, plan_for(model), 0, lambda done: None)
