"""Prompts as tokens: which turns fit, what contexts make of them, how conversations go on."""

from copy import deepcopy

import pytest
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lade.applications.bench.conversation import SEPARATOR, Conversation, Style, turn_lengths
from lade.applications.bench.prompts import Prompt
from lade.applications.bench.task import RunOptions, ask, eos_of, make_task

Story = tuple[PreTrainedModel, PreTrainedTokenizerBase]
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
TWO = Prompt("two", ("Once upon a time", "What then?"))
ONE = Prompt("one", ("One day, a little cat found",))
LONG = Prompt("long", ("word " * 600,))


@pytest.fixture
def chatty(shipped: Story) -> PreTrainedTokenizerBase:
    tokenizer = deepcopy(shipped[1])
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def test_turns_without_a_template_follow_each_other_as_they_stand(shipped: Story) -> None:
    tokenizer = shipped[1]
    conversation = Conversation(Style(tokenizer))
    first = conversation.ask("Once upon a time")
    assert first == tokenizer("Once upon a time").input_ids
    answer = tokenizer(" there was", add_special_tokens=False).input_ids
    conversation.answered([*answer, tokenizer.eos_token_id])
    following = tokenizer(SEPARATOR + "What then?", add_special_tokens=False).input_ids
    assert conversation.ask("What then?") == [*first, *answer, *following]


def test_a_template_is_used_where_there_is_one_and_it_is_wanted(chatty: PreTrainedTokenizerBase) -> None:
    conversation = Conversation(Style(chatty))
    bos = chatty.bos_token_id
    first = conversation.ask("Hello")
    assert first == [bos, *chatty("<user>Hello<assistant>", add_special_tokens=False).input_ids]
    conversation.answered(chatty("Good day", add_special_tokens=False).input_ids)
    written = chatty.decode(conversation.ask("And you?")[1:])
    assert written == "<user>Hello<assistant>Good day<user>And you?<assistant>"
    assert Conversation(Style(chatty, template=False)).ask("Hello") == chatty("Hello").input_ids


def test_the_lengths_of_turns_hold_for_the_longest_answers(shipped: Story) -> None:
    style = Style(shipped[1])
    lengths = turn_lengths(style, TWO.turns, 20)
    conversation = Conversation(style)
    assert len(conversation.ask(TWO.turns[0])) == lengths[0]
    conversation.answered([400] * 20)
    assert len(conversation.ask(TWO.turns[1])) == lengths[1]


def test_prompts_and_turns_that_do_not_fit_are_counted(shipped: Story) -> None:
    lengths = turn_lengths(Style(shipped[1]), TWO.turns, 0)
    task = make_task("hand", [ONE, TWO, LONG], *shipped, RunOptions(max_new_tokens=24))
    assert [(fitting.prompt.id, fitting.turns) for fitting in task.prompts] == [("one", 1), ("two", 2)]
    assert (task.skipped, task.turns_left_out, task.longest) == (1, 0, lengths[1] + 24)
    exactly = (512 - lengths[1]) // 2  # the first answer and the second one fill all positions
    assert make_task("hand", [TWO], *shipped, RunOptions(max_new_tokens=exactly)).turns_left_out == 0
    assert make_task("hand", [TWO], *shipped, RunOptions(max_new_tokens=exactly + 1)).turns_left_out == 1
    limited = make_task("hand", [TWO], *shipped, RunOptions(turns=1))
    assert (limited.prompts[0].turns, limited.turns_left_out) == (1, 0)
    with pytest.raises(ValueError, match=r"no prompt of hand fits the model's 512 positions"):
        make_task("hand", [ONE, LONG], *shipped, RunOptions(max_new_tokens=512))


@pytest.mark.parametrize("context", [3, 60, 400])
def test_prompts_are_brought_to_a_context(shipped: Story, context: int) -> None:
    tokenizer = shipped[1]
    options = RunOptions(context=context, max_new_tokens=24)
    task = make_task("hand", [TWO, ONE], *shipped, options)
    assert (task.longest, task.skipped) == (context, 0)
    first, other = (tokenizer(prompt.text, add_special_tokens=False).input_ids for prompt in (TWO, ONE))
    tokens = ask(Conversation(task.style), task.prompts[0], 0, options)
    assert len(tokens) == context
    assert tokens[0] == tokenizer.bos_token_id
    assert tokens[-2:] == first[-2:]  # a prompt that is cut keeps its end
    if context > 3:
        assert tokens[-len(first) :] == first
        filling = tokens[1 : -len(first)]
        endless = (other + first) * context
        assert any(filling == endless[start : start + len(filling)] for start in range(len(other + first)))
        assert all(tokens.count(token) for token in other)


def test_every_turn_is_brought_to_the_context(shipped: Story) -> None:
    options = RunOptions(context=40, max_new_tokens=24)
    task = make_task("hand", [TWO], *shipped, options)
    conversation = Conversation(task.style)
    for turn in range(2):
        assert len(ask(conversation, task.prompts[0], turn, options)) == 40
        conversation.answered([400] * 24)


def test_a_prompt_that_grew_is_cut_to_what_fits(chatty: PreTrainedTokenizerBase, shipped: Story) -> None:
    """Written out and read again, an answer may have more tokens than before."""
    options = RunOptions(max_new_tokens=24)
    task = make_task("hand", [TWO], shipped[0], chatty, options)
    conversation = Conversation(task.style)
    ask(conversation, task.prompts[0], 0, options)
    conversation.answered(chatty("a long answer " * 30, add_special_tokens=False).input_ids)
    tokens = ask(conversation, task.prompts[0], 1, options)
    assert len(tokens) == task.longest
    assert tokens[0] == chatty.bos_token_id
    assert chatty.decode(tokens).endswith("<user>What then?<assistant>")


def test_what_the_model_cannot_hold_is_refused(shipped: Story) -> None:
    with pytest.raises(ValueError, match="--eos must be below the vocabulary's size of 512, got 512"):
        make_task("hand", [ONE], *shipped, RunOptions(eos=(1, 512)))
    message = "--context must fit the model's 512 positions with 24 new tokens, got 500"
    with pytest.raises(ValueError, match=message):
        make_task("hand", [ONE], *shipped, RunOptions(context=500, max_new_tokens=24))


def test_texts_end_by_the_model_s_own_tokens_or_by_others(shipped: Story) -> None:
    assert eos_of(shipped[0], RunOptions(eos=(4, 5))) == [4, 5]
    own = shipped[0].generation_config.eos_token_id
    assert eos_of(shipped[0], RunOptions()) == (own if isinstance(own, list) else [own])
