"""`lade chat`: the streamer, the conversation, the flags, and the terminal end of it."""

import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from forks import needs_fork, run_script

import lade
from lade import LookaheadConfig
from lade.applications import chat
from lade.applications.chatbot import LLAMA, PLAIN, Chatbot, Format, MessageTooLongError, prompt_format
from lade.applications.color import StepStreamer
from lade.config.default import default_config
from lade.config.settings import MODES

SCRIPT = Path(__file__).parents[2] / "applications" / "chatbot.py"
ANSI = re.compile(r"\x1b\[\d+m")
PAPER = ("--mode", "lookahead")  # its steps do not depend on the machine
CHAT = ("--chat", "--dtype", "float32")  # where no near-tie parts the texts
SIZES = {"ngram": 3, "window": 4, "guesses": -1}
pytestmark = pytest.mark.usefixtures("default_settings")


@pytest.fixture(autouse=True)
def leave_as_found(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("USE_LADE", raising=False)
    monkeypatch.delenv("COLOR_PRINT", raising=False)
    yield
    lade.restore_all()


class Bytes:
    """A tokenizer whose tokens are bytes, so that a character takes several."""

    def decode(self, tokens: list[int], **_: object) -> str:
        return bytes(tokens).decode(errors="replace")


def stream(text: bytes, steps: list[int] | None = None, **options: Any) -> list[str]:
    """What is written for `text`, sent byte by byte in steps of the given sizes."""
    written: list[str] = []
    streamer = StepStreamer(Bytes(), written.append, **options)
    streamer.put(torch.tensor([[1, 2, 3]]))
    tokens = iter(text)
    for size in steps or []:
        streamer.begin_step()
        for _ in range(size):
            streamer.put(torch.tensor([next(tokens)]))
    for token in tokens:
        streamer.put(torch.tensor([token]))
    streamer.end()
    return written


def test_streamer_writes_each_token_and_no_prompt() -> None:
    assert stream(b"abc") == ["a", "b", "c"]


def test_streamer_waits_for_whole_characters() -> None:
    assert stream("é→x".encode()) == ["é", "→", "x"]


def test_streamer_writes_a_broken_character_at_the_end() -> None:
    assert "".join(stream("é".encode()[:1])) == "\ufffd"


@pytest.mark.parametrize(
    ("text", "expected"),
    [(b"ab\nUser:", "ab"), (b"ab\nUser: hi", "ab"), (b"ab\nUs", "ab\nUs"), (b"\nUse\nUser:", "\nUse")],
)
def test_streamer_keeps_the_stop_text_back(text: bytes, expected: str) -> None:
    assert "".join(stream(text, stop="\nUser:")) == expected


def test_tokens_that_a_step_won_are_coloured() -> None:
    written = stream(b"abcdef", steps=[3, 1, 2], color=True)
    assert [ANSI.sub("", piece) for piece in written] == ["a", "b", "c", "d", "e", "f"]
    assert [bool(ANSI.search(piece)) for piece in written] == [False, True, True, False, False, True]


def test_neighbouring_steps_differ_in_colour() -> None:
    written = stream(b"abcd", steps=[2, 2], color=True)
    assert ANSI.findall(written[1])[0] != ANSI.findall(written[3])[0]


def test_no_colour_without_steps_or_without_the_wish() -> None:
    assert stream(b"abc", color=True) == ["a", "b", "c"]
    assert stream(b"abc", steps=[3]) == ["a", "b", "c"]


def chatbot(shipped: tuple[Any, Any], **options: Any) -> Chatbot:
    model, tokenizer = shipped
    settings: dict[str, Any] = {"prompt_format": PLAIN, "max_new_tokens": 24, "write": lambda text: None} | options
    return Chatbot(model, tokenizer, **settings)


def test_streamed_text_is_the_reply(shipped: tuple[Any, Any]) -> None:
    written: list[str] = []
    reply = chatbot(shipped, write=written.append).answer("Tell me a story")
    assert "".join(written) == reply.text
    assert len(written) > 5


def test_turns_are_remembered_in_the_prompt(shipped: tuple[Any, Any]) -> None:
    bot = chatbot(shipped)
    first = bot.answer("Tell me a story")
    second = bot.answer("Go on")
    assert second.prompt_tokens > first.prompt_tokens + first.new_tokens
    assert [turn["role"] for turn in bot.turns] == ["user", "assistant", "user", "assistant"]
    assert bot.turns[1]["content"] == first.text.strip()


def test_oldest_turns_make_room(shipped: tuple[Any, Any]) -> None:
    bot = chatbot(shipped, max_new_tokens=150)
    replies = [bot.answer(f"Tell me story {number} about a big red dog and his ball") for number in range(5)]
    assert sum(reply.dropped for reply in replies) == 5 - len(bot.turns) // 2 > 0
    assert all(reply.prompt_tokens + 150 <= 512 for reply in replies)
    assert bot.turns[-2]["content"].startswith("Tell me story 4")


def test_reply_is_shortened_where_one_message_fills_the_positions(shipped: tuple[Any, Any]) -> None:
    reply = chatbot(shipped, max_new_tokens=500).answer("and then " * 150)
    assert reply.prompt_tokens + reply.new_tokens <= 512
    assert reply.new_tokens > 0


def test_message_beyond_the_positions_leaves_the_conversation_alone(shipped: tuple[Any, Any]) -> None:
    bot = chatbot(shipped)
    bot.answer("Hello")
    before = list(bot.turns)
    with pytest.raises(MessageTooLongError, match="the model 512 positions"):
        bot.answer("x " * 600)
    assert bot.turns == before


def test_reply_ends_where_the_user_would_speak(shipped: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that goes on with the other side's turn: neither the screen nor the next prompt holds it."""
    model, tokenizer = shipped
    written: list[str] = []
    bot = chatbot(shipped, write=written.append)
    spoken = tokenizer(" Yes.\nUser:", add_special_tokens=False, return_tensors="pt")["input_ids"]

    def generate(input_ids: torch.Tensor, streamer: StepStreamer, stop_strings: list[str], **_: object) -> torch.Tensor:
        assert stop_strings == ["\nUser:"]
        streamer.put(input_ids)
        for token in spoken[0]:
            streamer.put(token[None])
        streamer.end()
        return torch.cat([input_ids, spoken], dim=1)

    monkeypatch.setattr(model, "generate", generate)
    assert bot.answer("Is it?").text.strip() == "Yes."
    assert "".join(written).strip() == "Yes."
    assert bot.turns[-1] == {"role": "assistant", "content": "Yes."}


def test_format_follows_the_tokenizer(shipped: tuple[Any, Any]) -> None:
    _, tokenizer = shipped
    assert prompt_format("auto", tokenizer) is PLAIN
    assert prompt_format("llama", tokenizer) is LLAMA
    templated = type(tokenizer).from_pretrained(tokenizer.name_or_path)
    templated.chat_template = "{{ messages[0].content }}"
    assert prompt_format("auto", templated) == Format(template=None)


def test_prompts_of_the_built_in_formats(shipped: tuple[Any, Any]) -> None:
    _, tokenizer = shipped
    turns = [{"role": role, "content": text} for role, text in (("user", "A"), ("assistant", "B"), ("user", "C"))]
    texts = [
        tokenizer.apply_chat_template(turns, chat_template=form.template, tokenize=False) for form in (LLAMA, PLAIN)
    ]
    assert texts == ["<s>[INST] A [/INST] B </s><s>[INST] C [/INST]", "<s>User: A\nAssistant: B\nUser: C\nAssistant:"]


def run(*arguments: str, typed: str | bytes = "", **environment: str) -> Result:
    return CliRunner().invoke(chat.command, ["--max_new_tokens", "32", *arguments], input=typed, env=environment)


def test_one_built_in_question_without_chat() -> None:
    result = run(typed="this is not read\n")
    assert result.exit_code == 0
    assert result.stdout.startswith(f"User: {chat.QUESTION}\nAssistant: ")
    assert result.stdout.count("Assistant: ") == 1


@cache
def plain_chat(typed: str) -> Result:
    return run(*CHAT, typed=typed)


@pytest.mark.compat
@pytest.mark.parametrize("mode", MODES)
def test_lookahead_writes_the_same_chat_in_fewer_steps(mode: str) -> None:
    typed = "Once upon a time\nTell me more\n"
    plain = plain_chat(typed)
    ahead = run(*CHAT, "--mode", mode, typed=typed, USE_LADE="1")
    coloured = run(*CHAT, "--mode", mode, typed=typed, USE_LADE="1", COLOR_PRINT="1")
    assert plain.stdout == ahead.stdout
    assert plain.stdout.count("Assistant: ") == 2
    assert ANSI.sub("", coloured.stdout) == plain.stdout
    assert mode == "auto" or plain.stdout != coloured.stdout  # auto: where this machine's costs let it draft


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], LookaheadConfig()),
        (["--level", "3", "--window_size", "4", "--guess_set_size", "-1"], LookaheadConfig(**SIZES)),
        (["--mode", "lookahead"], LookaheadConfig(mode="lookahead")),
        (
            ["--mode", "lookahead", "--level", "3", "--window_size", "4", "--guess_set_size", "-1"],
            LookaheadConfig(mode="lookahead", **SIZES),
        ),
    ],
)
def test_mode_and_sizes_are_the_flags(flags: list[str], expected: LookaheadConfig) -> None:
    assert run(*flags, "--max_new_tokens", "2", USE_LADE="1").exit_code == 0
    assert default_config() == expected


def test_debug_tells_tokens_steps_and_speed() -> None:
    row = r"\[prompt tokens: \d+, tokens: (\d+), steps: (\d+), tokens per step: ([\d.]+), tokens/s: [\d.]+(.*)\]"
    tokens, steps, per_step, rest = re.search(row, run("--debug", *PAPER, USE_LADE="1").stdout).groups()
    assert int(tokens) == 32
    assert int(steps) < 28
    assert (float(per_step), rest) == (round(32 / int(steps), 2), "")
    assert re.search(row, run("--debug").stdout).groups() == ("32", "31", "1.03", ", plain decoding")


@pytest.mark.parametrize("environment", [{}, {"USE_LADE": "0"}, {"COLOR_PRINT": "1"}])
def test_lade_is_left_alone_without_use_lade(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lade, "augment_all", lambda: pytest.fail("augment_all() was called"))
    result = run(**environment)
    assert result.exit_code == 0
    assert not ANSI.search(result.stdout)


def test_blank_lines_and_bad_bytes_end_no_chat() -> None:
    result = run("--chat", "--max_new_tokens", "2", typed=b"\n  \nhi \xff\nlast without newline")
    assert result.exit_code == 0
    assert result.stdout.count("Assistant: ") == 2


def test_message_too_long_is_told_and_the_chat_goes_on() -> None:
    result = run("--chat", typed="x " * 3000 + "\nhello\n")
    assert result.exit_code == 0
    assert "the message is too long" in result.stderr
    assert len(result.stdout.rpartition("Assistant: ")[2].strip()) > 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model_path", "./nowhere"], "must be a folder, a hub name"),
        (["--model_type", "parrot"], "auto"),
        (["--max_new_tokens", "0"], "x>=1"),
        (["--dtype", "int8"], "float32"),
        (["--device", "abacus"], "abacus"),
        (["--quant", "int3"], "--quant.*nf4"),
        (["--mode", "paper"], "--mode.*auto.*lookahead"),
        (["--use_ds"], "--use-ds.*DeepSpeed"),
        (["--local_rank", "1"], "--local-rank.*must be 0, got 1"),
        (["--level", "1"], "LEVEL must be .*, got 1"),
        (["--window_size", "0"], "WINDOW_SIZE must be .*, got 0"),
        (["--guess_set_size", "0"], "GUESS_SET_SIZE must be .*, got 0"),
        (["--level", "1000000"], "LEVEL must be .* at most 256, got 1000000"),
    ],
)
def test_bad_flags_are_refused_before_a_model_is_loaded(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat, "load_model", lambda *_, **__: pytest.fail("a model was loaded"))
    result = run(*arguments)
    assert result.exit_code == 2
    assert re.search(message, " ".join(result.stderr.split()))


@needs_fork
def test_script_answers_what_it_reads() -> None:
    done = run_script(SCRIPT, "--chat", "--max_new_tokens", "4", typed="hello\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("User: hello\nAssistant: ")


def test_closed_pipe_is_no_traceback() -> None:
    """The script in an interpreter of its own, which answers through pipes until nobody reads any more."""
    command = [sys.executable, str(SCRIPT), "--chat", "--max_new_tokens", "64"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdin.write(b"hello\n")
        process.stdin.flush()
        assert process.stdout.readline() + process.stdout.read(11) == b"User: hello\nAssistant: "
        process.stdout.close()
        _, errors = process.communicate(b"hello\n")
    assert process.returncode == 1
    assert b"Traceback" not in errors
    assert b"Broken pipe" not in errors
