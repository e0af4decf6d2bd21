"""Images in a chat: the texts are those of `generate` for what transformers' processor makes of the conversation, and
commands treat an image as a part of its message."""

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from forks import forget_lade, needs_fork, run_in_a_child
from PIL import Image
from seeing import IMAGE_TOKENS, TEMPLATE, gemma3, picture, tokenizer

import lade
from lade.applications.chat import command as chat
from lade.applications.chat import conversation as files
from lade.applications.chat import images as chat_images
from lade.applications.chat.bot import Chatbot, MessageTooLongError
from lade.applications.chat.decoder import Decoded, PlainDecoder, decoder_for
from lade.applications.chat.formats import LLAMA, PLAIN, Format, prompt_format
from lade.applications.chat.images import ChatImages, read_image
from lade.applications.chat.messages import images_in, is_message, text_of, user_message
from lade.applications.chat.session import Session
from lade.applications.chat.settings import ChatSettings
from lade.models.processor import load_processor

RED, BLUE = picture(1), picture(2, (9, 31))
FIRST = "What is this? Tell me all that you see, and do not forget the corners."
NO_READER = "images must go to a model that reads them, got one without a processor of images"
Json = dict[str, Any]
pytestmark = pytest.mark.usefixtures("default_settings")


def ignore(text: str) -> None:
    """Where a test does not look at what is written."""


@pytest.fixture(scope="session")
def seen(llava: Path) -> tuple[Any, Any, Any]:
    """A model, its tokenizer and its processor."""
    return *lade.models.load(llava, dtype="float32"), load_processor(llava)


@pytest.fixture
def red(tmp_path: Path) -> Path:
    RED.save(tmp_path / "red one.png")
    return tmp_path / "red one.png"


@pytest.fixture
def blue(tmp_path: Path) -> Path:
    BLUE.save(tmp_path / "blue.webp", lossless=True)
    return tmp_path / "blue.webp"


def chatbot(parts: tuple[Any, Any, Any], plain: bool = False, **settings: Any) -> Chatbot:
    model, own, processor = parts
    lade.config_lade(BUDGET=16, ADAPT=0)
    images = ChatImages(model, lambda: processor)
    decoder = PlainDecoder(model, own, "no reason") if plain else decoder_for(model, own)
    form = prompt_format("auto", own, lambda: images.template)
    return Chatbot(model, own, form, decoder, ChatSettings(**{"max_new_tokens": 24} | settings), images)


@pytest.fixture
def session(seen: tuple[Any, Any, Any]) -> Session:
    return Session(chatbot(seen), "llava")


def shown(*images: Image.Image, text: str) -> Json:
    """The user's message as transformers' processor takes it."""
    return {"role": "user", "content": [*({"type": "image", "image": each} for each in images), said(text)]}


def said(text: str) -> Json:
    return {"type": "text", "text": text}


def answered(text: str) -> Json:
    return {"role": "assistant", "content": [said(text)]}


def expected(
    parts: tuple[Any, Any, Any], conversation: list[Json], seed: int | None = None, **kwargs: Any
) -> list[int]:
    """The new tokens of plain decoding."""
    how = {"add_generation_prompt": True, "tokenize": True, "return_dict": True, "return_tensors": "pt"}
    inputs = parts[2].apply_chat_template(conversation, **how)
    if seed is not None:
        torch.manual_seed(seed)
    found = parts[0].generate(**inputs, **{"max_new_tokens": 24, "do_sample": False} | kwargs)
    tokens: list[int] = found[0, inputs["input_ids"].shape[1] :].tolist()
    return tokens


def attach(bot: Chatbot, *paths: Path) -> None:
    bot.attached += [read_image(path) for path in paths]


def after(calls: int) -> Callable[[], bool]:
    """A user who stops the answer after some steps."""
    left = iter([False] * calls)
    return lambda: next(left, True)


@pytest.mark.parametrize("plain", [False, True])
def test_texts_are_those_of_generate(seen: tuple[Any, Any, Any], red: Path, blue: Path, plain: bool) -> None:
    """Three turns: about one image, about it without another one, and about two more. Earlier images stay."""
    bot = chatbot(seen, plain)
    told: list[Json] = []
    for text, paths, images in ((FIRST, [red], [RED]), ("And now?", [], []), ("These?", [blue, red], [BLUE, RED])):
        attach(bot, *paths)
        reply = bot.answer(text, ignore)
        told.append(shown(*images, text=text))
        assert reply.cost.tokens == expected(seen, told)
        assert reply.prompt_tokens > IMAGE_TOKENS * sum(len(each["content"]) - 1 for each in told)
        assert not bot.attached
        told.append(answered(reply.text.strip()))
        if not plain and len(told) == 4:  # the second turn computes its new text alone
            assert reply.cost.cached == (len(FIRST) + IMAGE_TOKENS) // 64 * 64
    assert [len(images_in([turn])) for turn in bot.conversation.turns[::2]] == [1, 0, 2]


def test_a_model_that_reads_more_than_pixels(red: Path) -> None:
    model, own, processor = gemma3()
    parts = (model, own, processor)
    bot = chatbot(parts)
    attach(bot, red)
    reply = bot.answer(FIRST, ignore)
    assert reply.cost.tokens == expected(parts, [shown(RED, text=FIRST)])
    following = bot.answer("Go on", ignore)
    told = [shown(RED, text=FIRST), answered(reply.text.strip()), shown(text="Go on")]
    assert following.cost.tokens == expected(parts, told)


def test_sampled_answers_and_a_system_prompt(seen: tuple[Any, Any, Any], red: Path) -> None:
    bot = chatbot(seen, temperature=0.9, seed=3)
    bot.set_system("Be short.")
    attach(bot, red)
    reply = bot.answer("What?", ignore)
    told = [{"role": "system", "content": [said("Be short.")]}, shown(RED, text="What?")]
    sampling = {"do_sample": True, "temperature": 0.9, "top_k": 0, "top_p": 1.0}
    assert reply.cost.tokens == expected(seen, told, seed=3, **sampling)


def test_an_answer_that_is_none_keeps_the_images(
    seen: tuple[Any, Any, Any], red: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that fails, and one that is stopped before its first token."""
    bot = chatbot(seen)
    attach(bot, red)
    with pytest.raises(ValueError, match="without '<image>' in their texts"):
        bot.answer("What is <image>?", ignore)
    with pytest.raises(MessageTooLongError):
        bot.answer("x" * 1200, ignore)
    with monkeypatch.context() as stopped:
        stopped.setattr(bot.decoder, "decode", lambda *_, **__: Decoded([], 0, 0, 1.0, interrupted=True))
        assert bot.answer("What?", ignore).new_tokens == 0
    assert not bot.conversation.turns
    assert len(bot.attached) == 1
    part = bot.answer("What?", ignore, after(1))
    assert part.cost.interrupted
    assert part.new_tokens
    assert not bot.attached


def test_oldest_images_make_room(seen: tuple[Any, Any, Any], red: Path) -> None:
    bot = chatbot(seen, max_new_tokens=200)
    told = "x" * 400
    for _ in range(2):
        attach(bot, red)
        reply = bot.answer(told, ignore)
    assert reply.dropped == 1
    assert len(images_in(bot.conversation.turns)) == 1
    assert reply.cost.tokens == expected(seen, [shown(RED, text=told)], max_new_tokens=200)


def test_commands_treat_an_image_as_a_part_of_its_message(
    session: Session, red: Path, blue: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bot = session.bot
    for line, told in (
        ("/image", "No image is attached."),
        (f"/image '{red}'", "Attached to the next message: red one.png (20 x 12 pixels)."),
        (f"/image {blue}", "red one.png (20 x 12 pixels), blue.webp (9 x 31 pixels)."),
        ('/image ""', "No image is attached."),
        (f"/image {blue} '{red}'", "blue.webp (9 x 31 pixels), red one.png (20 x 12 pixels)."),
    ):
        session.take(line)
        assert told in capsys.readouterr().out
    session.take("Which?")
    turns = list(bot.conversation.turns)
    assert len(images_in(turns)) == 2
    session.take(f"/image {blue}")
    capsys.readouterr()
    session.take("/retry")
    assert not capsys.readouterr().err
    assert bot.conversation.turns == turns
    assert [each.name for each in bot.attached] == ["blue.webp"]
    capsys.readouterr()
    session.take("/compare")
    assert "The same text" in capsys.readouterr().out
    session.take("/undo")
    assert capsys.readouterr().out == "Dropped: Which? (2 images)\n"
    assert not bot.conversation.turns
    session.take("/clear")
    assert not bot.attached


def test_a_saved_conversation_holds_its_images(
    session: Session, red: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "chat.json"
    session.take(f"/image '{red}'")
    session.take("What?")
    session.take(f"/save {path}")
    assert f"Saved 1 message with answers (1 image) in {path}." in capsys.readouterr().out
    turns = list(session.bot.conversation.turns)
    (image, text) = json.loads(path.read_text())["messages"][0]["content"]
    assert image["image_url"]["url"].startswith("data:image/png;base64,")
    assert text == said("What?")
    session.take("And?")
    answer = session.bot.conversation.turns[-1]
    session.take("/clear")
    session.take(f"/load {path}")
    assert "Loaded 1 message with answers (1 image)." in capsys.readouterr().out
    assert session.bot.conversation.turns == turns
    session.take("And?")
    assert session.bot.conversation.turns[-1] == answer


def test_a_file_with_images_that_cannot_be_read_changes_nothing(
    session: Session, shipped: tuple[Any, Any], red: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, reply = tmp_path / "chat.json", {"role": "assistant", "content": "A dog."}
    for url, reads, told in (
        ("data:image/png;base64,aaaa", True, "image 1 must be a whole PNG, JPEG, WebP or GIF image"),
        (read_image(red).url, False, NO_READER),
    ):
        files.save(path, files.Conversation(None, [user_message("What?", [url]), reply]), "m")
        bot = session.bot if reads else Chatbot(*shipped, PLAIN, decoder_for(*shipped))
        Session(bot, "m").take(f"/load {path}")
        assert told in capsys.readouterr().err
        assert not bot.conversation.turns


def test_a_conversation_too_large_for_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST", 100)
    with pytest.raises(ValueError, match=r"FILE must have at most 100 bytes, got a conversation of \d{3}$"):
        files.save(tmp_path / "a.json", files.Conversation("x" * 100), "m")
    assert not (tmp_path / "a.json").exists()


@pytest.mark.parametrize(
    ("role", "content", "holds"),
    [
        ("user", [said("a"), {"type": "image_url", "image_url": {"url": "data:image/gif;base64,"}}], True),
        ("user", [], True),
        ("assistant", [said("a")], False),
        ("user", [{"type": "image_url", "image_url": {"url": "https://x.test/a.png"}}], False),
        ("user", [{"type": "image_url", "image_url": "data:image/gif;base64,"}], False),
        ("user", [{"type": "image_url"}], False),
        ("user", [{"type": "text"}], False),
        ("user", ["a"], False),
        ("user", None, False),
    ],
)
def test_what_is_a_message(role: str, content: Any, holds: bool) -> None:
    assert is_message({"role": role, "content": content}) is holds


def test_texts_of_messages() -> None:
    assert user_message("a") == {"role": "user", "content": "a"}
    assert text_of(user_message("a", ["data:image/gif;base64,"])) == text_of(user_message("a")) == "a"


WRONG = [
    ("nowhere.png", "nowhere.png: cannot be read"),
    ("", "a directory"),
    ("notes.txt", "notes.txt must be a whole PNG, JPEG, WebP or GIF image, got another file"),
    ("~nobody-of-this-name/a.png", "FILE must be a path"),
    ("'a.png", "FILE must be a path, quoted if it has spaces"),
]


@pytest.mark.parametrize(("name", "told"), WRONG)
def test_a_wrong_file_is_one_line(
    session: Session, red: Path, name: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """And none of several is attached."""
    (red.parent / "notes.txt").write_text("no image")
    session.take(f"/image '{red}' {name if name.startswith(('~', chr(39))) else red.parent / name}")
    out, err = capsys.readouterr()
    assert not out
    assert told in err
    assert err.count("\n") == 1
    assert not session.bot.attached
    session.take("hello")
    assert "Assistant: " in capsys.readouterr().out


def test_a_model_of_text_alone(shipped: tuple[Any, Any], red: Path, capsys: pytest.CaptureFixture[str]) -> None:
    session = Session(Chatbot(*shipped, PLAIN, decoder_for(*shipped)), "m")
    session.take(f"/image '{red}'")
    assert capsys.readouterr().err == f"({NO_READER})\n"


@pytest.mark.parametrize("form", [LLAMA, PLAIN])
def test_formats_without_a_place(
    seen: tuple[Any, Any, Any], red: Path, form: Format, capsys: pytest.CaptureFixture[str]
) -> None:
    session = Session(chatbot(seen), "m")
    session.bot.prompt_format = form
    session.take(f"/image '{red}'")
    assert "must be text only, since the prompt format has no place for images" in capsys.readouterr().err


@pytest.mark.parametrize("error", [ImportError("no torchvision"), OSError("no file"), ValueError("damaged")])
def test_a_processor_that_does_not_load(
    seen: tuple[Any, Any, Any], error: Exception, red: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> None:
        raise error

    session = Session(chatbot(seen), "m")
    session.bot.images = ChatImages(seen[0], fails)
    session.take(f"/image '{red}'")
    assert capsys.readouterr().err == f"(the model's processor does not load: {error})\n"
    session.take("hello")
    assert "Assistant: " in capsys.readouterr().out


def test_without_pillow(
    seen: tuple[Any, Any, Any], red: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_images, "find_spec", lambda name: None)
    session = Session(chatbot(seen), "m")
    session.take(f"/image '{red}'")
    assert capsys.readouterr().err == "(images need Pillow; pip install 'lade-decoding[serve]')\n"
    result = run("stories260K", "hello", "--image", str(red))
    assert result.exit_code == 2
    assert "pip install 'lade-decoding[serve]'" in result.stderr


@needs_fork
def test_a_chat_imports_no_pillow() -> None:
    """Only with an image."""

    def imported() -> None:
        forget_lade()
        sys.modules["PIL"] = None  # type: ignore[assignment]
        importlib.import_module("lade.applications.chat.command")
        importlib.import_module("lade.applications.chat.bot")

    done = run_in_a_child(imported)
    assert done.returncode == 0, done.stderr


# Templates


@pytest.mark.parametrize("in_parts", [False, True])
def test_a_template_of_the_processor_alone(
    seen: tuple[Any, Any, Any],
    red: Path,
    in_parts: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Texts are told by it too, in parts where it reads these alone."""
    model, _, processor = seen
    part = "{{ '<image>' if part['type'] == 'image' else part['text'] }}"
    template = (
        "{% for message in messages %}{% for part in message['content'] %}" + part + "{% endfor %}|{% endfor %}"
        if in_parts
        else TEMPLATE
    )
    own = tokenizer()
    own.chat_template = None
    monkeypatch.setattr(processor, "chat_template", template)
    parts = (model, own, processor)
    bot = chatbot(parts)
    assert bot.prompt_format.in_parts is in_parts
    chat.greet(Session(bot, "llava"))
    assert "no chat template" not in capsys.readouterr().out
    first = bot.answer("Hello", ignore)
    assert first.cost.tokens == expected(parts, [shown(text="Hello")])
    attach(bot, red)
    told = [shown(text="Hello"), answered(first.text.strip()), shown(RED, text="And?")]
    assert bot.answer("And?", ignore).cost.tokens == expected(parts, told)


def test_no_template_at_all(seen: tuple[Any, Any, Any], red: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _, processor = seen
    own = tokenizer()
    own.chat_template = None
    monkeypatch.setattr(processor, "chat_template", None)
    monkeypatch.setattr(processor.tokenizer, "chat_template", None)
    bot = chatbot((model, own, processor))
    assert bot.prompt_format is PLAIN
    attach(bot, red)
    with pytest.raises(ValueError, match="must be text only"):
        bot.answer("What?", ignore)
    with pytest.raises(ValueError, match="no chat template that says where images stand"):
        bot.images.prompt([user_message("What?", [each.url for each in bot.attached])])


def test_what_the_template_refuses(seen: tuple[Any, Any, Any], red: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bot = chatbot(seen)
    attach(bot, red)
    monkeypatch.setattr(seen[2], "chat_template", "{{ messages.nothing.more }}")
    with pytest.raises(ValueError, match="ones that the model's chat template takes, got "):
        bot.answer("What?", ignore)


# The command


def run(*arguments: str, typed: str = "") -> Result:
    flags = ["--max-new-tokens", "24", "--threads", "1"]
    return CliRunner().invoke(chat.command, [*flags, *arguments], input=typed)


def test_images_of_a_prompt(seen: tuple[Any, Any, Any], llava: Path, red: Path, blue: Path) -> None:
    model = [str(llava), "--dtype", "float32"]
    images = ["--image", str(red), "--image", str(blue)]
    tokens = expected(seen, [shown(RED, BLUE, text="Which?")])
    text = seen[1].decode(tokens, skip_special_tokens=True)
    assert run(*model, "Which?", *images).stdout == f"{text}\n"
    assert run(*model, *images, typed="Which?\n").stdout == f"{text}\n"
    assert f"Assistant: {text}\n" in run(*model, "--chat", *images, typed="Which?\n").stdout
    typed = f"/image '{red}' {blue}\nWhich?\n"
    assert f"Assistant: {text}\n" in run(*model, "--chat", typed=typed).stdout


def test_wrong_images_are_refused_before_a_model_is_loaded(red: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (red.parent / "notes.txt").write_text("no image")
    result = run("stories260K", "Hello", "--image", str(red))
    assert result.exit_code == 2
    assert NO_READER in " ".join(result.stderr.split())
    monkeypatch.setattr(chat, "load_model", lambda *_, **__: pytest.fail("a model was loaded"))
    for name, told in (("nowhere.png", "cannot be read"), ("notes.txt", "must be a whole PNG, JPEG, WebP or GIF")):
        result = run("stories260K", "Hello", "--image", str(red.parent / name))
        assert result.exit_code == 2
        assert told in result.stderr
        assert "--image" in result.stderr
