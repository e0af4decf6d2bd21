"""The chatbot: its turns and prompts, what it computes of them again, and what an interrupt leaves."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from tiny import tiny_model
from unbranchable import UNBRANCHABLE

import lade
from lade.applications.chat.bot import Chatbot, MessageTooLongError
from lade.applications.chat.decoder import Decoded, EngineDecoder, PlainDecoder, decoder_for
from lade.applications.chat.formats import LLAMA, PLAIN, TEXT, Format, prompt_format
from lade.applications.chat.reply import Reply
from lade.applications.chat.settings import ChatSettings

Shipped = tuple[Any, Any]


@pytest.fixture(autouse=True)
def same_start(default_settings: None, shipped: Shipped) -> None:
    """Trees that depend neither on the machine's speed nor on what other tests decoded."""
    lade.config_lade(BUDGET=16, ADAPT=0)
    lade.drop_pools(shipped[0])


def ignore(text: str) -> None:
    """Where a test does not look at what is written."""


def chatbot(shipped: Shipped, form: Format = PLAIN, **settings: Any) -> Chatbot:
    return Chatbot(*shipped, form, decoder_for(*shipped), ChatSettings(**{"max_new_tokens": 24} | settings))


def after(calls: int) -> Callable[[], bool]:
    """A user who stops the answer after some steps."""
    left = iter([False] * calls)
    return lambda: next(left, True)


def test_written_text_is_the_reply(shipped: Shipped) -> None:
    written: list[str] = []
    reply = chatbot(shipped).answer("Tell me a story", written.append)
    assert "".join(written) == reply.text
    assert len(written) > 5


def test_turns_are_remembered_in_the_prompt(shipped: Shipped) -> None:
    bot = chatbot(shipped)
    first, second = bot.answer("Tell me a story", ignore), bot.answer("Go on", ignore)
    assert second.prompt_tokens > first.prompt_tokens + first.new_tokens
    assert [turn["role"] for turn in bot.conversation.turns] == ["user", "assistant", "user", "assistant"]
    assert bot.conversation.turns[1]["content"] == first.text.strip()


def test_earlier_turns_are_not_computed_again(shipped: Shipped, monkeypatch: pytest.MonkeyPatch) -> None:
    """The KV cache keeps 64 tokens at a time; forwards with prompts are counted."""
    bot = chatbot(shipped, max_new_tokens=100)
    engine = bot.decoder._engine  # type: ignore[attr-defined]
    read: list[int] = []
    forward = engine._loop.target.forward

    def counted(slots: Any, drafts: Any) -> Any:
        read.extend(len(draft) for draft in drafts if "prompt" in draft.sources or len(draft.queries) <= 1 < len(draft))
        return forward(slots, drafts)

    monkeypatch.setattr(engine._loop.target, "forward", counted)
    computed, replies = [], []
    for message in ("Tell me a story about a dog", "And one about a cat", "Go on"):
        read.clear()
        replies.append(bot.answer(message, ignore))
        computed.append(sum(read))
    assert computed == [reply.prompt_tokens - reply.cost.cached for reply in replies]
    assert [reply.cost.cached % 64 for reply in replies] == [0, 0, 0]
    for before, reply in pairwise(replies):
        assert reply.cost.cached > before.prompt_tokens + before.new_tokens - 64 - 5  # 5: where texts are joined
    assert bot.total.cached == sum(reply.cost.cached for reply in replies)
    bot.forget()
    assert bot.answer("Tell me a story about a dog", ignore).cost.cached == 0


def test_oldest_turns_make_room(shipped: Shipped) -> None:
    bot = chatbot(shipped, max_new_tokens=150)
    replies = [bot.answer(f"Tell me story {number} about a big red dog and his ball", ignore) for number in range(3)]
    assert sum(reply.dropped for reply in replies) == 3 - len(bot.conversation.turns) // 2 > 0
    assert all(reply.prompt_tokens + 150 <= 512 for reply in replies)
    assert bot.conversation.turns[-2]["content"].startswith("Tell me story 2")


def test_answer_is_shortened_where_one_message_fills_the_positions(shipped: Shipped) -> None:
    reply = chatbot(shipped, max_new_tokens=500).answer("and then " * 150, ignore)
    assert reply.prompt_tokens + reply.new_tokens <= 512
    assert reply.new_tokens > 0


def test_message_beyond_the_positions_leaves_the_conversation_alone(shipped: Shipped) -> None:
    bot = chatbot(shipped)
    bot.answer("Hello", ignore)
    before = list(bot.conversation.turns)
    with pytest.raises(MessageTooLongError, match="the model 512 positions"):
        bot.answer("x " * 600, ignore)
    assert bot.conversation.turns == before


@pytest.mark.parametrize("drafts", [True, False])
def test_an_interrupted_answer_stays_as_far_as_it_is(shipped: Shipped, drafts: bool) -> None:
    """Both decoders; the next answer goes on from the part that there is."""
    bot = chatbot(shipped)
    if not drafts:
        bot.decoder = PlainDecoder(*shipped, "no reason")
    whole = bot.answer("Tell me a story", ignore)
    bot.forget()
    written: list[str] = []
    part = bot.answer("Tell me a story", written.append, after(1))
    assert part.cost.interrupted
    assert 0 < part.new_tokens < whole.new_tokens
    assert whole.text.startswith(part.text)
    assert "".join(written) == part.text
    assert bot.conversation.turns[-1]["content"] == part.text.strip()
    following = bot.answer("Go on", ignore)
    assert not following.cost.interrupted
    assert len(bot.conversation.turns) == 4


def test_an_answer_stopped_before_its_first_token_leaves_no_message(shipped: Shipped) -> None:
    bot = chatbot(shipped)
    bot.answer("Hello", ignore)
    before = list(bot.conversation.turns)
    long = "and then " * 130  # 260 tokens or more are read in two steps
    assert bot.answer(long, ignore, lambda: True).new_tokens == 0
    assert bot.conversation.turns == before
    bot.retry(ignore)
    assert bot.conversation.turns == before
    assert bot.total.replies == 2


class Failing:
    """A decoder that gives no token, or an error."""

    reason = None

    def __init__(self, found: Decoded | Exception) -> None:
        self.found = found

    def decode(self, *_: object, **__: object) -> Decoded:
        if isinstance(self.found, Exception):
            raise self.found
        return self.found

    def forget(self, tenant: str = "") -> None:
        """Nothing is kept."""


@pytest.mark.parametrize("found", [Decoded([], 0, 0, 1.0, interrupted=True), OSError("no")])
def test_a_retry_that_gives_nothing_keeps_the_answer(shipped: Shipped, found: Decoded | Exception) -> None:
    bot = chatbot(shipped)
    for _ in range(2):
        bot.answer("The same message", ignore)
    before = list(bot.conversation.turns)
    bot.decoder = Failing(found)
    if isinstance(found, Exception):
        with pytest.raises(OSError, match="no"):
            bot.retry(ignore)
    else:
        bot.retry(ignore)
    assert bot.conversation.turns == before


def test_retry_answers_the_last_message_again(shipped: Shipped) -> None:
    bot = chatbot(shipped, temperature=1.0, seed=5)
    first, again = bot.answer("Tell me a story", ignore), bot.retry(ignore)
    assert again is not None
    assert first.text != again.text
    assert [turn["content"] for turn in bot.conversation.turns] == ["Tell me a story", again.text.strip()]
    other = chatbot(shipped, temperature=1.0, seed=6)
    assert other.answer("Tell me a story", ignore).text == again.text
    assert chatbot(shipped).retry(ignore) is None


@pytest.mark.parametrize("plain", [True, False])
def test_sampled_answer_is_that_of_plain_decoding(shipped: Shipped, plain: bool) -> None:
    model, tokenizer = shipped
    reply = chatbot(shipped, TEXT, temperature=0.9, top_p=0.95, top_k=20, seed=3, plain=plain).answer("Once", ignore)
    torch.manual_seed(3)
    ids = tokenizer("<s>Once", add_special_tokens=False, return_tensors="pt")
    found = model.generate(**ids, do_sample=True, temperature=0.9, top_p=0.95, top_k=20, max_new_tokens=24)
    assert reply.cost.tokens == found[0, ids["input_ids"].shape[1] :].tolist()
    assert (reply.cost.steps == reply.new_tokens - 1) >= plain


def test_compare_knows_nothing_of_the_answer_before(shipped: Shipped) -> None:
    """Else drafts would repeat it, and the KV cache would hold the prompt."""
    bot = chatbot(shipped, max_new_tokens=60)
    assert bot.compare() is None
    first = bot.answer("Tell me a story", ignore)
    turns = list(bot.conversation.turns)
    for plain, drafted in filter(None, (bot.compare(), bot.compare())):
        assert plain.cost.tokens == drafted.cost.tokens == first.cost.tokens
        assert plain.cost.steps == plain.new_tokens - 1
        assert drafted.cost.steps == first.cost.steps
        assert (plain.cost.cached, drafted.cost.cached) == (0, 0)
    again = bot.retry(ignore)
    assert again is not None
    assert again.cost.steps < first.cost.steps  # drafts of what was learned
    assert bot.conversation.turns == turns
    assert bot.total.replies == 2


def test_answer_ends_where_the_user_would_speak(shipped: Shipped, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that goes on with the other side's turn: neither the screen nor the next prompt holds it."""
    model, tokenizer = shipped
    written: list[str] = []
    bot = chatbot(shipped)
    bot.decoder = PlainDecoder(model, tokenizer, "no reason")
    spoken = tokenizer(" Yes.\nUser:", add_special_tokens=False, return_tensors="pt")["input_ids"]

    def generate(input_ids: torch.Tensor, streamer: Any, stop_strings: list[str], **_: object) -> torch.Tensor:
        assert stop_strings == ["\nUser:"]
        streamer.put(input_ids)
        for token in spoken[0]:
            streamer.put(token[None])
        streamer.end()
        return torch.cat([input_ids, spoken], dim=1)

    monkeypatch.setattr(model, "generate", generate)
    assert bot.answer("Is it?", written.append).text.strip() == "Yes."
    assert "".join(written).strip() == "Yes."
    assert bot.conversation.turns[-1] == {"role": "assistant", "content": "Yes."}


def test_a_model_without_draft_trees_is_decoded_plainly() -> None:
    family = next(each for each in UNBRANCHABLE if each.name == "bloom")
    decoder = decoder_for(tiny_model(family, family.attention[-1]), None)  # type: ignore[arg-type]
    assert isinstance(decoder, PlainDecoder)
    assert "ALiBi" in decoder.reason


def test_a_method_that_does_not_fit_is_an_error(shipped: Shipped) -> None:
    with pytest.raises(ValueError, match="method must be"):
        decoder_for(*shipped, "a draft model")
    assert isinstance(decoder_for(*shipped, lade.DraftModel(shipped[0])), EngineDecoder)


def test_format_follows_the_tokenizer(shipped: Shipped) -> None:
    _, tokenizer = shipped
    assert [prompt_format(kind, tokenizer) for kind in ("auto", "llama", "plain", "text")] == [TEXT, LLAMA, PLAIN, TEXT]
    other = type(tokenizer).from_pretrained(tokenizer.name_or_path)
    other.name_or_path = "somewhere/else"
    assert prompt_format("auto", other) is PLAIN
    other.chat_template = "{{ messages[0].content }}"
    assert prompt_format("auto", other) == Format(template=None, takes_images=True)


def test_prompts_of_the_built_in_formats(shipped: Shipped) -> None:
    _, tokenizer = shipped
    turns = [{"role": role, "content": text} for role, text in (("user", "A"), ("assistant", "B"), ("user", "C"))]
    system = [{"role": "system", "content": "S"}]
    assert LLAMA.text(tokenizer, turns) == "<s>[INST] A [/INST] B </s><s>[INST] C [/INST]"
    assert LLAMA.text(tokenizer, system + turns[:1]) == "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\nA [/INST]"
    assert PLAIN.text(tokenizer, turns) == "<s>User: A\nAssistant: B\nUser: C\nAssistant:"
    assert PLAIN.text(tokenizer, system + turns[:1]) == "<s>System: S\nUser: A\nAssistant:"
    assert TEXT.text(tokenizer, turns) == "<s>C"


def test_system_prompt_only_where_the_format_has_one(shipped: Shipped) -> None:
    _, tokenizer = shipped
    refuses = Format("{{ raise_exception('no system role') if messages[0].role == 'system' }}")
    taken = [form.takes_system(tokenizer) for form in (PLAIN, LLAMA, TEXT, refuses)]
    assert taken == [True, True, False, False]
    bot = chatbot(shipped, TEXT)
    with pytest.raises(ValueError, match="must have a prompt format with a system prompt"):
        bot.set_system("Be brief.")
    assert bot.conversation.system is None


def test_a_template_that_refuses_is_told(shipped: Shipped) -> None:
    bot = chatbot(shipped, Format("{{ raise_exception('only one message') }}"))
    with pytest.raises(ValueError, match="chat template takes, got only one message"):
        bot.answer("Hello", ignore)


def test_summary_of_a_reply() -> None:
    cost = Decoded([1, 2, 3, 4], 2, 64, 0.5)
    assert (
        Reply("x", 70, 0, cost).summary()
        == "[prompt tokens: 70 (64 from the KV cache), tokens: 4, steps: 2, tokens per step: 2.00, tokens/s: 8.0]"
    )
    assert Reply("x", 70, 0, cost, "").summary().endswith(", plain decoding]")
    assert Reply("x", 70, 0, cost, "ALiBi").summary().endswith(", plain decoding (ALiBi)]")
