"""Reading messages: blocks, pastes, history and keys, through prompt_toolkit's own pipe instead of a terminal."""

import io
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from lade.applications.chat import reader
from lade.applications.chat.markdown import MarkdownWriter
from lade.applications.chat.reader import LineReader, TerminalReader, is_open, message_in

PASTE = "\x1b[200~{}\x1b[201~"
ALT_ENTER, ENTER, UP, CTRL_C, CTRL_D = "\x1b\r", "\r", "\x1b[A", "\x03", "\x04"


@pytest.fixture
def keys() -> Iterator[PipeInput]:
    with create_pipe_input() as source:
        yield source


def terminal(keys: PipeInput, history: Path | None = None) -> TerminalReader:
    return TerminalReader(history, ["/help"], source=keys, output=DummyOutput())


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (f"hello{ENTER}", "hello"),
        (f"two{ALT_ENTER}lines{ENTER}", "two\nlines"),
        (PASTE.format("a\rb\r\rc\r") + ENTER, "a\nb\n\nc"),
        (PASTE.format("line\r" * 2000) + ENTER, "\n".join(["line"] * 2000)),
        (f"Look: {PASTE.format('x' * 20000)}{ENTER}", "Look: " + "x" * 20000),
        (f'"""a{ENTER}{ENTER}b{ENTER}"""{ENTER}', "a\n\nb"),
        (f"    return 1{ENTER}", "    return 1"),
    ],
)
def test_a_message_arrives_whole(keys: PipeInput, typed: str, message: str) -> None:
    keys.send_text(typed)
    assert terminal(keys).read() == message


@pytest.mark.parametrize(("key", "error"), [(CTRL_C, KeyboardInterrupt), (CTRL_D, EOFError)])
def test_keys_that_leave(keys: PipeInput, key: str, error: type[BaseException]) -> None:
    keys.send_text(key)
    with pytest.raises(error):
        terminal(keys).read()


def test_history_comes_back_in_the_next_chat(keys: PipeInput, tmp_path: Path) -> None:
    path = tmp_path / "lade" / "history"
    keys.send_text(f"one{ENTER}two{ENTER}")
    first = terminal(keys, path)
    assert [first.read(), first.read()] == ["one", "two"]
    keys.send_text(f"{UP}{UP}{ENTER}")
    assert terminal(keys, path).read() == "one"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_history_that_cannot_be_written_ends_no_chat(keys: PipeInput, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    keys.send_text(f"hello{ENTER}")
    assert terminal(keys, tmp_path / "file" / "history").read() == "hello"


def test_the_history_lies_in_the_users_folder() -> None:
    found = reader.history_file()
    assert found is not None
    assert Path(os.environ["HOME"]) in found.parents


def test_a_user_without_a_home_has_no_history(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(*_: object, **__: object) -> Path:
        raise RuntimeError("no home")

    monkeypatch.setattr("platformdirs.user_state_path", nowhere)
    assert reader.history_file() is None


def test_lines_of_a_pipe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO('one\n"""two\n\nthree"""\n"""open\nend\n'))
    lines = LineReader()
    assert [lines.read() for _ in range(3)] == ["one", "two\n\nthree", "open\nend"]
    with pytest.raises(EOFError):
        lines.read()
    assert capsys.readouterr().out.startswith('User: one\nUser: """two\n\nthree"""\n')


@pytest.mark.parametrize(
    ("text", "is_block", "message"),
    [
        ("hello", False, "hello"),
        ('"""', True, ""),
        ('"""a', True, "a"),
        ('"""a"""', False, "a"),
        ('""""""', False, ""),
        ('say """a"""', False, 'say """a"""'),
        ('"""\n  a\n"b"\n"""', False, '  a\n"b"'),
    ],
)
def test_blocks(text: str, is_block: bool, message: str) -> None:
    assert is_open(text) is is_block
    assert message_in(text) == message


def test_markdown_is_printed_block_by_block() -> None:
    file = io.StringIO()
    writer = MarkdownWriter(file, width=40)
    text = "# Title\n\nSome *text*\nhere.\n\n```python\na = 1\n\nb = 2\n```\n\n- one\n- two"
    after = {}
    for at, character in enumerate(text):
        writer.write(character)
        after[at] = file.getvalue()
    assert "Title" in after[text.index("Some")]
    assert "Some" not in after[text.index("here.")]
    assert "a = 1" not in after[text.index("b = 2")]
    assert "b = 2" in after[text.index("- one")]
    assert "one" not in file.getvalue()
    writer.end()
    assert "• one" in file.getvalue()
    assert "*" not in file.getvalue()
    whole = io.StringIO()
    other = MarkdownWriter(whole, width=40)
    other.write(text)
    other.end()
    assert whole.getvalue().split() == file.getvalue().split()
