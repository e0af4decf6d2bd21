"""`lade chat` in a pseudo-terminal: interrupts, pastes, blocks and files, with a model whose answers do not end."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from terminal import CTRL_C, CTRL_D, UP, Terminal

from lade.models.load import model_source

pytestmark = [pytest.mark.real, pytest.mark.skipif(os.name != "posix", reason="pseudo-terminals are POSIX's")]
ENDLESS = 100_000  # tokens


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The story model with so many positions, and without a token that ends a text."""
    folder = tmp_path_factory.mktemp("model") / "endless"
    shutil.copytree(model_source("stories260K"), folder)
    for file, changes in (
        ("config.json", {"max_position_embeddings": 2 * ENDLESS, "eos_token_id": None}),
        ("generation_config.json", {"eos_token_id": None}),
    ):
        found = json.loads((folder / file).read_text()) | changes
        (folder / file).write_text(json.dumps(found))
    return folder


@pytest.fixture
def chat(endless: Path) -> Iterator[Terminal]:
    flags = ["--max-new-tokens", str(ENDLESS), "--threads", "1", "--color"]
    with Terminal(["-m", "lade", "chat", str(endless), *flags]) as terminal:
        terminal.until("Ctrl-D leaves.")
        terminal.until("User:")
        yield terminal


def stopped(chat: Terminal) -> None:
    """Wait for some words of the answer, and press Ctrl-C."""
    chat.until(r"Assistant: (\s*\S+\s){4}")
    chat.type(CTRL_C)
    chat.until(r"\(stopped\)")
    chat.until(r"tokens/s")
    chat.until("User:")


def saved(chat: Terminal, path: Path) -> list[dict[str, Any]]:
    chat.send(f"/save {path}")
    chat.until("Saved")
    chat.until("User:")
    found: list[dict[str, Any]] = json.loads(path.read_text())["messages"]
    return found


def test_a_chat_with_interrupts_and_pastes(chat: Terminal, tmp_path: Path) -> None:
    chat.send("Tell me a story")
    stopped(chat)
    (asked, answered) = saved(chat, tmp_path / "one.json")
    assert asked == {"role": "user", "content": "Tell me a story"}
    assert " ".join(answered["content"].split()[:4]) in " ".join(chat.shown.split())

    chat.type("dropped")
    chat.type(CTRL_C)
    chat.until("Ctrl-D or /bye leaves")
    chat.until("User:")
    pasted = "\n".join(f"line {number}" for number in range(100))
    chat.paste(pasted)
    chat.send("")
    stopped(chat)
    chat.send('"""')
    chat.send("two")
    chat.send('lines"""')
    stopped(chat)
    chat.send("/retry")
    stopped(chat)
    messages = saved(chat, tmp_path / "two.json")
    assert [each["content"] for each in messages if each["role"] == "user"] == ["Tell me a story", pasted, "two\nlines"]

    chat.send("/compare")
    chat.until("answered twice")
    chat.type(CTRL_C)
    chat.until("nothing to compare")
    for _ in range(2):
        chat.send("/undo")
        chat.until("Dropped: ")
    chat.send("/plain")
    chat.until("One token per forward")
    chat.send("/retry")
    stopped(chat)
    assert [each["content"] for each in saved(chat, tmp_path / "three.json")][::2] == ["Tell me a story"]
    chat.send(f"/load {tmp_path / 'two.json'}")
    chat.until("Loaded 3 messages")
    chat.until("User:")
    chat.type(UP)
    chat.until("/load")
    chat.type(CTRL_C)
    chat.until("leaves")
    chat.until("User:")
    chat.type(CTRL_D)
    assert chat.ended() == 0
    assert "Traceback" not in chat.shown


def test_a_program_that_hangs_tells_where() -> None:
    """Of the helper: what other tests, and the stranger's script, show when they wait in vain."""
    with Terminal(["-c", "import threading; print('ready', flush=True); threading.Event().wait()"]) as hanging:
        hanging.until("ready")
        with pytest.raises(AssertionError, match=r"(?s)no 'more'.*most recent call first.*<module>"):
            hanging.until("more", patience=0.0)
