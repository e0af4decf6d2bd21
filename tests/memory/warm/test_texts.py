"""Texts that a model writes for its warm table: what the model says along them, and what begins and ends them."""

import copy
from typing import Any

import pytest
import torch
from families import BRANCHABLE, BY_NAME, VOCAB, Family
from tiny import tiny_model
from transformers import MambaConfig, MambaForCausalLM, PreTrainedModel

from lade.memory.warm import texts as warmtexts
from lade.memory.warm.table import compute
from lade.memory.warm.texts import (
    CHATS,
    CHOICES,
    LENGTH,
    ROWS,
    SIDE_BY_SIDE,
    TextPlan,
    TextsPart,
    WarmTexts,
    rows_for,
    shape_for,
    write_texts,
)
from lade.memory.warm.turns import Turns, turns_of

TEXTS, TOKENS, TOP = 3, 12, 5
TEXT = Turns((1,))


def written(
    model: PreTrainedModel, rows: int = TEXTS, length: int = TOKENS, top: int = TOP, turns: Turns | None = None
) -> WarmTexts:
    plan = TextPlan(top, rows, length, rows, turns or turns_of(model))
    write_texts(model, plan, lambda tokens: None, part := TextsPart())
    return part.texts(top)


def marked(begins: int | None, ends: Any) -> PreTrainedModel:
    model = copy.deepcopy(tiny_model(BY_NAME["llama"]))
    for config in (model.generation_config, model.config):
        config.bos_token_id, config.eos_token_id = begins, ends
    return model


@pytest.mark.compat
@pytest.mark.parametrize("family", BRANCHABLE, ids=lambda family: family.name)
@torch.no_grad()
def test_predictions_are_those_after_each_token_of_the_text(family: Family) -> None:
    model, length = tiny_model(family), 6
    texts = written(model, length=length)
    assert texts.written.shape == (TEXTS, length)
    assert texts.tokens.shape == texts.probabilities.shape == (TEXTS, length, TOP)
    expected = model(input_ids=texts.written.long()).logits.softmax(-1)
    torch.testing.assert_close(texts.probabilities, expected.topk(TOP).values)
    torch.testing.assert_close(expected.gather(-1, texts.tokens.long()), texts.probabilities)


def test_the_next_token_is_one_of_the_likely_ones_and_texts_differ() -> None:
    texts = written(marked(1, None), top=CHOICES)
    assert (texts.written[:, 1:, None] == texts.tokens[:, :-1]).any(-1).all()
    assert not torch.equal(texts.written[0], texts.written[1])
    assert torch.equal(texts.written, written(marked(1, None), top=1).written)  # whatever is kept, and every time


@pytest.mark.parametrize(
    ("begins", "ends", "first"), [(7, 9, 7), (None, 9, 9), (None, [8, 9], 8), (None, None, 0), (7, [], 7)]
)
def test_where_texts_begin(begins: int | None, ends: Any, first: int) -> None:
    assert written(marked(begins, ends), length=1).written.tolist() == [[first]] * TEXTS


def test_a_text_that_ends_makes_room_for_a_new_one() -> None:
    free = written(marked(1, None)).written
    end = int(free[0, 4])
    assert end != 1
    ended = written(marked(1, [end])).written
    assert end not in ended
    assert ended[0, 4] == 1
    assert torch.equal(ended[0, :4], free[0, :4])


def test_texts_are_no_longer_than_the_model_has_positions() -> None:
    config = copy.deepcopy(tiny_model(BY_NAME["gpt2"]).config)
    config.n_positions = 17
    assert shape_for(config, TEXT) == (ROWS, 17)
    assert shape_for(config, Turns((1, 2, 3, 4, 5), (6,))) == (ROWS * CHATS, 13)
    config.n_positions = 10 * LENGTH
    assert shape_for(config, TEXT) == (ROWS, LENGTH)
    del config.n_positions
    assert shape_for(config, TEXT) == (ROWS, LENGTH)
    assert shape_for(config, Turns((1,), (6,))) == (ROWS * CHATS, LENGTH // CHATS)


def test_a_model_without_a_memory_writes_none_and_still_has_a_table() -> None:
    config = MambaConfig(vocab_size=VOCAB, hidden_size=8, state_size=4, num_hidden_layers=1, use_mambapy=False)
    table = compute(MambaForCausalLM(config).eval(), top=3)
    assert table.tokens.shape == (VOCAB, 3)
    assert len(table.contexts.endings) == 0
    assert table.contexts.tokens.shape == (0, 3)


def test_texts_are_written_a_few_at_a_time() -> None:
    told: list[int] = []
    plan, part = TextPlan(TOP, 7, 4, 3, Turns((1,))), TextsPart()
    write_texts(marked(1, None), plan, told.append, part, batches=1)
    assert part.texts(TOP).written.shape == (3, 4)
    write_texts(marked(1, None), plan, told.append, part)
    texts = part.texts(TOP)
    assert texts.written.shape == (7, 4)
    assert texts.tokens.shape == texts.probabilities.shape == (7, 4, TOP)
    assert told == [3] * 4 + [3] * 4 + [1] * 4
    assert not torch.equal(texts.written[3:6], texts.written[:3])  # a batch goes on where the last one's chances ended
    torch.testing.assert_close(texts.probabilities[3:, 0], texts.probabilities[:4, 0])


def test_as_many_side_by_side_as_the_cache_may_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(BY_NAME["llama"])
    config = model.config
    token = 2 * config.num_hidden_layers * config.hidden_size * 4
    monkeypatch.setattr(warmtexts, "CACHE", 10 * token)
    assert (rows_for(model, 2), rows_for(model, 3), rows_for(model, 100)) == (5, 3, 1)
    monkeypatch.undo()
    assert rows_for(model, LENGTH) == SIDE_BY_SIDE
    monkeypatch.setattr(warmtexts, "LARGE", sum(parameter.numel() for parameter in model.parameters()))
    assert rows_for(model, LENGTH) == SIDE_BY_SIDE // 2
