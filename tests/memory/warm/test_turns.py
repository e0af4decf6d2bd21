"""Turns of a model's own texts: the chat template's, and which tokens the model chooses."""

import copy
from typing import Any

import pytest
import torch
from families import BY_NAME
from tiny import tiny_model
from transformers import PreTrainedModel

from lade.memory.warm import turns as warmturns
from lade.memory.warm.texts import TextPlan, TextsPart, WarmTexts, write_texts
from lade.memory.warm.turns import Turns, TurnState, local_tokenizer, turns_of

CHAT = Turns((1, 20, 21), (9, 30), (9,))


def marked(begins: int, ends: int) -> PreTrainedModel:
    model = copy.deepcopy(tiny_model(BY_NAME["llama"]))
    for config in (model.generation_config, model.config):
        config.bos_token_id, config.eos_token_id = begins, ends
    return model


def written(model: PreTrainedModel, length: int, turns: Turns) -> WarmTexts:
    write_texts(model, TextPlan(5, 3, length, 3, turns), lambda tokens: None, part := TextsPart())
    return part.texts(5)


class Chat:
    """A tokenizer with a chat template, one token per character."""

    chat_template = "a program"

    def __init__(self, text: str | None) -> None:
        self.text = text

    def apply_chat_template(self, messages: list[dict[str, str]], **how: Any) -> str:
        if self.text is None:
            raise LookupError("the template's own")
        assert how == {"tokenize": False, "add_generation_prompt": True}
        return self.text.replace("MESSAGE", messages[0]["content"])

    def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[int]]:
        assert not add_special_tokens
        return {"input_ids": [ord(letter) - ord("a") for letter in text]}


def test_texts_begin_as_a_users_chat_does() -> None:
    assert turns_of(marked(1, 2), Chat("bcMESSAGEde")) == Turns((1, 2), (3, 4), (2,))


@pytest.mark.parametrize("text", [None, "bcde", "MESSAGEde", "bcMESSAGE", "bMESSAGEcMESSAGEd", "bMESSAGEé"])
def test_without_a_usable_template_they_begin_with_the_start_token(text: str | None) -> None:
    assert turns_of(marked(1, 2), Chat(text)) == turns_of(marked(1, 2)) == Turns((1,), (), (2,))


def test_a_long_template_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warmturns, "LONGEST", 3)
    assert turns_of(marked(1, 2), Chat("bcMESSAGEde")).head == (1,)


def follow(state: TurnState, *chosen: int) -> list[int]:
    return [int(state.follow(torch.tensor([token]))) for token in chosen]


def test_a_message_its_answer_and_the_next_head_follow_each_other() -> None:
    state = TurnState(CHAT, 1, "cpu")
    assert follow(state, 40, 41) == [40, 41]
    assert follow(state, 9, 50) == [9, 30]  # the message ends: the model's choice is not used behind it
    assert bool(state.chooses)
    assert follow(state, 42, 43) == [42, 43]
    assert state.state[1].tolist() == [1]
    assert follow(state, 9, 50, 50) == [1, 20, 21]
    assert bool(state.chooses)
    assert state.state[1].tolist() == [0]


def test_a_message_has_a_bounded_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warmturns, "MESSAGE", 2)
    assert follow(TurnState(CHAT, 1, "cpu"), 40, 41, 42, 43, 44, 45, 46, 47) == [40, 41, 9, 30, 44, 45, 46, 47]


def test_a_message_also_ends_where_the_template_goes_on() -> None:
    state = TurnState(Turns((1,), (30, 31), (9,)), 2, "cpu")
    assert state.follow(torch.tensor([30, 9])).tolist() == [30, 30]
    assert state.follow(torch.tensor([40, 40])).tolist() == [31, 31]


def test_a_state_goes_on_where_it_was() -> None:
    state = TurnState(CHAT, 1, "cpu")
    follow(state, 40, 9)
    before = state.state.clone()
    other = TurnState(CHAT, 1, "cpu", state.state)
    assert follow(other, 50, 42) == [30, 42]
    assert torch.equal(state.state, before)


def test_written_texts_hold_the_template_and_count_what_the_model_chose() -> None:
    model = copy.deepcopy(tiny_model(BY_NAME["llama"]))
    free = written(model, 40, Turns((1, 20, 21), (9, 30), ()))
    end = int(free.written[0, 3])
    texts = written(model, 40, Turns((1, 20, 21), (9, 30), (end,)))
    rows = texts.written.tolist()
    assert all(row[0] == 21 for row in rows)  # the head's last token: the rest stands before the text
    assert rows[0][3:5] == [9, 30]
    assert texts.counted[0, :5].tolist() == [True, True, True, False, True]
    assert not texts.counted.all(0).all()


@torch.no_grad()
def test_predictions_are_those_after_the_head_and_the_text() -> None:
    model = tiny_model(BY_NAME["llama"])
    head = (1, 20, 21)
    texts = written(model, 12, Turns(head, (9, 30), (2,)))
    whole = torch.cat([torch.tensor([head[:-1]]).expand(len(texts.written), -1), texts.written.long()], dim=1)
    expected = model(input_ids=whole).logits[:, len(head) - 1 :].softmax(-1)
    torch.testing.assert_close(texts.probabilities, expected.topk(texts.tokens.shape[2]).values)


def test_the_tokenizer_beside_the_weights_is_found(shipped: tuple[PreTrainedModel, Any]) -> None:
    model, tokenizer = shipped
    found = local_tokenizer(model)
    assert found is not None
    assert found.get_vocab() == tokenizer.get_vocab()


@pytest.mark.parametrize("name", ["", None, "./nowhere", 7])
def test_where_there_is_no_tokenizer_none_is_found(name: Any) -> None:
    model = marked(1, 2)
    model.name_or_path = name
    assert local_tokenizer(model) is None


def test_a_tokenizer_with_more_tokens_than_the_model_is_not_its_own(shipped: tuple[PreTrainedModel, Any]) -> None:
    model = marked(1, 2)
    model.name_or_path = shipped[0].name_or_path
    assert local_tokenizer(model) is None
