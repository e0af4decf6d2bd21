"""Conversations and their files, settings, and the commands of a chat."""

import json
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lade.applications.chat import commands
from lade.applications.chat.conversation import Conversation, load, save
from lade.applications.chat.decoder import Decoded
from lade.applications.chat.interrupt import Interrupt
from lade.applications.chat.reply import Reply, Total
from lade.applications.chat.session import Session
from lade.applications.chat.settings import NAMES, ChatSettings
from lade.files.regularfile import AbsentFileError, UnreadableFileError

# Settings


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("temperature", "0.7", 0.7),
        ("top_p", "1", 1.0),
        ("top_k", "40", 40),
        ("seed", "7", 7),
        ("seed", "none", None),
        ("max_new_tokens", "10", 10),
        ("plain", "on", True),
        ("markdown", "off", False),
    ],
)
def test_a_setting_as_it_is_typed(name: str, text: str, value: Any) -> None:
    assert getattr(ChatSettings().with_text(name, text), name) == value


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("temperature", "-1", "temperature must be 0, or a number of at least 1e-05, got -1.0"),
        ("temperature", "nan", "temperature must be 0, or a number of at least 1e-05, got nan"),
        ("temperature", "1e-320", "temperature must be 0, or a number of at least 1e-05, got 1e-320"),
        ("temperature", "", "temperature must be 0, or a number of at least 1e-05, got ''"),
        ("top_p", "0", "top_p must be a number above 0 and at most 1, got 0.0"),
        ("top_k", "1.5", "top_k must be an integer of at least 0, got '1.5'"),
        ("seed", "x", "seed must be an integer of at least 0, or none, got 'x'"),
        ("max_new_tokens", "0", "max_new_tokens must be an integer of at least 1, got 0"),
        ("color", "blue", "color must be on or off, got 'blue'"),
        ("colour", "on", "the setting must be one of temperature, top_p, .*, got 'colour'"),
    ],
)
def test_a_wrong_setting_says_what_it_must_be(name: str, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        ChatSettings().with_text(name, text)


def test_settings_are_shown_as_they_are_typed() -> None:
    settings = ChatSettings(temperature=0.7, seed=None, color=True)
    again = ChatSettings()
    for line in settings.lines():
        again = again.with_text(*line.split())
    assert again == settings
    assert len(settings.lines()) == len(NAMES)


# Files


def talk(messages: int, system: str | None = None) -> Conversation:
    turns = [
        {"role": role, "content": f"{role} {number} é\n"}
        for number in range(messages)
        for role in ("user", "assistant")
    ]
    return Conversation(system, turns)


@pytest.mark.parametrize("found", [talk(2, "Be brief."), talk(1), Conversation()])
def test_a_conversation_comes_back_as_it_was_saved(found: Conversation, tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    save(path, found, "my/model")
    assert load(path) == found
    assert json.loads(path.read_text())["model"] == "my/model"
    save(path, talk(1), "my/model")
    assert load(path) == talk(1)


def test_no_other_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    with pytest.raises(ValueError, match=r"FILE must be new or hold a conversation, got .*notes\.txt"):
        save(path, talk(1), "m")
    assert path.read_text() == "mine"
    with pytest.raises(OSError, match="nowhere"):
        save(tmp_path / "nowhere" / "chat.json", talk(1), "m")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "must be a JSON object"),
        ("{}", "messages must be a list"),
        ('{"messages": [1]}', "messages must be a list of objects with role and content"),
        ('{"messages": [{"role": "user"}]}', "messages must be a list of objects with role and content"),
        ('{"messages": [{"role": "user", "content": "x"}]}', "must be user and assistant in turn, got .'user'."),
        ('{"messages": [{"role": "tool", "content": "x"}]}', "must be user and assistant in turn, got .'tool'."),
    ],
)
def test_a_file_that_holds_no_conversation(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    path.write_text(content)
    with pytest.raises(UnreadableFileError, match=message):
        load(path)
    with pytest.raises(AbsentFileError):
        load(tmp_path / "nothing.json")


def test_undo_drops_a_message_and_its_answer() -> None:
    found = talk(2)
    assert found.undo() == talk(2).turns[2]
    assert found.turns == talk(1).turns
    assert found.undo() == talk(2).turns[0]
    assert found.undo() is None


# Commands


class Bot:
    """Answers each message with itself; has the parts of a chatbot that commands use."""

    def __init__(self) -> None:
        self.conversation, self.settings, self.total = talk(2, "Be brief."), ChatSettings(), Total()
        self.forgotten, self.attached = 0, list[Any]()

    def answer(self, message: str, write: Any, stopped: Any) -> Reply:
        if message == "fail":
            raise ValueError("no answer to this")
        if message == "stop":
            signal.raise_signal(signal.SIGINT)
        write(message)
        tokens = [] if stopped() else [1, 2]
        if tokens:
            self.conversation.turns += [{"role": "user", "content": message}, {"role": "assistant", "content": message}]
        return Reply(message, 3, 0, Decoded(tokens, 1, 0, 1.0, {}, stopped()))

    def retry(self, write: Any, stopped: Any) -> Reply | None:
        message = self.conversation.undo()
        return None if message is None else self.answer(message["content"], write, stopped)

    def compare(self, stopped: Any) -> tuple[Reply, Reply] | None:
        if not self.conversation.turns:
            return None
        plain, drafted = Decoded([1, 2, 3], 2, 0, 2.0), Decoded([1, 2, 3], 1, 0, 1.0)
        return Reply("x", 3, 0, plain), Reply("x", 3, 0, drafted)

    def forget(self) -> None:
        self.forgotten += 1
        self.conversation.turns = []

    def set_system(self, system: str | None) -> None:
        self.conversation.system = system or None


@pytest.fixture
def session() -> Session:
    return Session(Bot(), "my/model")  # type: ignore[arg-type]


def test_help_names_every_command(session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    session.take("/help")
    shown = capsys.readouterr().out
    assert all(f"\n{name} " in f"\n{shown}" for name in commands.COMMANDS)
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("/help", True),
        ("/HELP", False),
        ("/usr/bin is a folder", False),
        ("/help\nme", False),
        ("/", True),
        ("a /b", False),
    ],
)
def test_what_is_a_command(message: str, expected: bool) -> None:
    assert commands.is_command(message) is expected


def test_turns_are_dropped_and_answered_again(session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    bot = session.bot
    session.take("/undo")
    assert bot.conversation.turns == talk(1).turns
    session.take("/retry")
    assert bot.conversation.turns[0] == talk(1).turns[0]
    assert "Greedy decoding gives the same answer" in capsys.readouterr().out
    session.take("/clear")
    assert (bot.conversation.turns, bot.conversation.system) == ([], "Be brief.")
    for command in ("/undo", "/retry", "/compare"):
        session.take(command)
        assert "There is no message." in capsys.readouterr().out


def test_the_system_prompt_is_shown_set_and_removed(session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    for command, shown in (("/system", "Be brief."), ("/system  Be  kind. ", "Be  kind."), ('/system ""', "no system")):
        session.take(command)
        assert shown in capsys.readouterr().out
    assert session.bot.conversation.system is None


def test_settings_by_commands(session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    session.take("/set temperature 0.5")
    session.take("/plain")
    assert session.bot.settings == ChatSettings(temperature=0.5, plain=True)
    session.take("/plain off")
    session.take("/set")
    assert capsys.readouterr().out.endswith("temperature 0.5\n" + "\n".join(ChatSettings().lines()[1:]) + "\n")
    for command in ("/plain perhaps", "/set top_k", "/set x 1"):
        session.take(command)
        assert " must be " in capsys.readouterr().err
    assert session.bot.settings == ChatSettings(temperature=0.5)


def test_saved_loaded_and_refused(session: Session, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "chat.json"
    session.take(f"/save {path}")
    session.take("/clear")
    session.take('/system ""')
    session.take(f"/load {path}")
    assert session.bot.conversation == talk(2, "Be brief.")
    assert "Loaded 2 messages with answers." in capsys.readouterr().out
    for command in ("/save", "/save a b", "/save 'a", "/load ~nobody-of-this-name/x", f"/load {tmp_path}"):
        session.take(command)
        assert capsys.readouterr().err.startswith("(")
    assert session.bot.conversation == talk(2, "Be brief.")


def test_a_file_whose_system_prompt_does_not_fit_changes_nothing(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "chat.json", talk(1, "Be kind."), "m")

    def refuse(system: str | None) -> None:
        raise ValueError("no")

    monkeypatch.setattr(session.bot, "set_system", refuse)
    session.take(f"/load {tmp_path / 'chat.json'}")
    assert session.bot.conversation == talk(2, "Be brief.")


def test_a_comparison_ends_in_one_line(session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    session.take("/compare")
    rows = capsys.readouterr().out.splitlines()
    assert rows[1:] == [
        "plain      3 tokens in 2 steps, 1.50 per step, 1.5 tokens/s",
        "lookahead  3 tokens in 1 steps, 3.00 per step, 3.0 tokens/s",
        "The same text, 2.00 times as fast.",
    ]
    different = [Reply("x", 3, 0, Decoded([1, token], 1, 0, 1.0)) for token in (2, 3)]
    assert "the texts differ" in commands.verdict(*different)


def test_totals_are_sums() -> None:
    total = Total()
    for accepted in ({"warm": 2}, {"warm": 1, "suffix": 4}):
        total.add(Reply("x", 10, 0, Decoded([1] * 8, 4, 5, 2.0, accepted)))
    assert total.lines() == [
        "answers: 2",
        "prompt tokens: 20, 10 of them from the KV cache of earlier turns",
        "tokens: 16 in 8 steps, 2.00 per step",
        "tokens/s: 4.0",
        "accepted draft tokens by source: suffix 4, warm 3",
    ]


# The loop


class Typed:
    """A reader of given messages; an exception is raised."""

    def __init__(self, *messages: str | type[BaseException]) -> None:
        self._left = list(messages)

    def read(self) -> str:
        if not self._left:
            raise EOFError
        found = self._left.pop(0)
        if isinstance(found, str):
            return found
        raise found


def test_errors_and_interrupts_leave_the_chat_running(
    session: Session, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C during an answer stops it; at a terminal's prompt it drops the line."""
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    handler = signal.getsignal(signal.SIGINT)
    session.bot.attached = ["an image"]  # type: ignore[list-item]
    session.run(Typed("fail", "stop", " ", KeyboardInterrupt, "hello", "/bye", "not read"))
    out, err = capsys.readouterr()
    assert "(no answer to this)" in err
    assert "(stopped before its first token; the message is dropped, its images stay attached)" in err
    assert "Assistant: hello\n" in out
    assert "(Ctrl-D or /bye leaves)" in out
    assert "not read" not in out
    assert session.bot.conversation.turns[-1]["content"] == "hello"
    assert signal.getsignal(signal.SIGINT) is handler


def test_ctrl_c_in_a_pipe_ends_the_chat(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: False))
    with pytest.raises(KeyboardInterrupt):
        session.run(Typed(KeyboardInterrupt))


def test_an_interrupt_is_noted_inside_alone() -> None:
    interrupt = Interrupt()
    with interrupt:
        assert not interrupt.asked
        signal.raise_signal(signal.SIGINT)
        assert interrupt.asked
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    with interrupt:
        assert not interrupt.asked
