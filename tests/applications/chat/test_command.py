"""`lade chat` and the original's script: their options, arguments, pipes and output."""

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from forks import needs_fork, run_script
from transformers import LlamaModel

import lade
from lade import LookaheadConfig
from lade.applications import chatbot as script
from lade.applications.chat import command as chat
from lade.applications.chat import toys
from lade.applications.chat.bot import Chatbot
from lade.config.default import default_config
from lade.config.settings import MODES
from lade.models.shipped import STORIES, TARGET

SCRIPT = Path(__file__).parents[3] / "applications" / "chatbot.py"
ANSI = re.compile(r"\x1b\[\d+m")
MODEL = "stories260K"  # float32, where no near-tie parts the texts
FIXED = ("--mode", "lookahead")  # its steps do not depend on the machine
SHORT = ("--max_new_tokens", "24", "--threads", "1")
LINE = r"\[prompt tokens: \d+, tokens: (\d+), steps: (\d+), tokens per step: ([\d.]+), tokens/s: [\d.]+(.*)\]"
pytestmark = pytest.mark.usefixtures("default_settings")


@pytest.fixture(autouse=True)
def no_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("USE_LADE", raising=False)
    monkeypatch.delenv("COLOR_PRINT", raising=False)


def run(*arguments: str, typed: str | bytes = "", **environment: str) -> Result:
    return CliRunner().invoke(chat.command, [*SHORT, *arguments], input=typed, env=environment)


def run_original(*arguments: str, typed: str | bytes = "", **environment: str) -> Result:
    flags = ["--model_path", MODEL, *SHORT, *arguments]
    return CliRunner().invoke(script.command, flags, input=typed, env=environment)


# Arguments and pipes


def test_a_prompt_is_answered_and_nothing_else_is_on_stdout() -> None:
    result = run(MODEL, "Once upon a time", "--stats")
    assert result.exit_code == 0
    assert result.stdout.startswith(", there was a little girl")
    assert result.stdout.count("\n") == 1
    assert re.search(LINE, result.stderr)


@pytest.mark.parametrize("arguments", [(MODEL,), (MODEL, "Once upon")])
def test_a_pipe_is_one_message(arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lines stay together, behind the prompt if there is one."""
    asked: list[str] = []
    answer = Chatbot.answer

    def noted(self: Chatbot, message: str, *rest: Any) -> Any:
        asked.append(message)
        return answer(self, message, *rest)

    monkeypatch.setattr(Chatbot, "answer", noted)
    result = run(*arguments, typed="a time\n\nthere was\n")
    assert result.exit_code == 0
    assert asked == ["\n\n".join([*arguments[1:], "a time\n\nthere was"])]


def test_an_empty_pipe_is_refused() -> None:
    result = run(MODEL, typed="\n")
    assert result.exit_code == 2
    assert "the prompt must have at least one character" in result.stderr


def test_a_prompt_that_is_too_long_is_an_error() -> None:
    result = run(MODEL, "x " * 3000)
    assert result.exit_code == 1
    assert "the message is too long" in result.stderr


def test_the_model_once() -> None:
    assert run(MODEL, "--model", MODEL).exit_code == 2
    assert "MODEL must be given once" in run(MODEL, "--model", MODEL).stderr


def test_sampling_options_and_a_system_prompt() -> None:
    arguments = (MODEL, "Tell me a story", "--model-type", "plain", "--temperature", "1", "--system", "Be kind.")
    texts = [run(*arguments, "--seed", str(seed), "--top-k", "40").stdout for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    refused = run(MODEL, "Hello", "--system", "Be kind.")
    assert refused.exit_code == 2
    assert "--system" in refused.stderr


def test_a_draft_model_gives_the_same_text() -> None:
    answers = [run(MODEL, "Once upon a time", *draft) for draft in ((), ("--draft", MODEL))]
    assert answers[0].stdout == answers[1].stdout
    assert answers[1].exit_code == 0


# Chats through a pipe


@cache
def plain_chat(typed: str) -> Result:
    return run(MODEL, "--chat", "--model-type", "plain", "--lookahead-off", typed=typed)


@pytest.mark.compat
@pytest.mark.parametrize("mode", MODES)
def test_lookahead_writes_the_same_chat(mode: str) -> None:
    typed = "Once upon a time\nTell me more\n"
    plain, flags = plain_chat(typed), (MODEL, "--chat", "--model-type", "plain", "--mode", mode)
    ahead, coloured = run(*flags, typed=typed), run(*flags, "--color", typed=typed)
    assert plain.stdout == ahead.stdout == ANSI.sub("", coloured.stdout)
    assert plain.stdout.count("Assistant: ") == 2
    assert mode == "auto" or plain.stdout != coloured.stdout  # auto: where this machine's costs let it draft


def test_statistics_tell_tokens_steps_and_speed() -> None:
    typed = "Once upon a time\n"
    tokens, steps, per_step, rest = re.search(
        LINE, run(MODEL, "--chat", "--stats", *FIXED, typed=typed).stdout
    ).groups()
    assert int(tokens) == 24
    assert int(steps) < 23
    assert (float(per_step), rest) == (round(24 / int(steps), 2), "")
    for off in ({"USE_LADE": "0"}, {}):
        result = run(MODEL, "--chat", "--debug", *(() if off else ("--lookahead-off",)), typed=typed, **off)
        assert re.search(LINE, result.stdout).groups() == ("24", "23", "1.04", ", plain decoding")


def test_blank_lines_and_bad_bytes_end_no_chat() -> None:
    result = run(MODEL, "--chat", "--max_new_tokens", "2", typed=b"\n  \nhi \xff\nlast without newline")
    assert result.exit_code == 0
    assert result.stdout.count("Assistant: ") == 2


def test_a_message_too_long_is_told_and_the_chat_goes_on() -> None:
    result = run(MODEL, "--chat", typed="x " * 3000 + "\nhello\n")
    assert result.exit_code == 0
    assert "the message is too long" in result.stderr
    assert len(result.stdout.rpartition("Assistant: ")[2].strip()) > 3


def test_a_model_that_fails_is_told_and_the_chat_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """By lade and plainly; one question ends with the sentence."""
    whole, failing = LlamaModel.forward, list[bool]()

    def forward(self: Any, *arguments: Any, **inputs: Any) -> Any:
        if failing:
            failing.clear()
            raise RuntimeError("mat1 and mat2\nand much more")
        return whole(self, *arguments, **inputs)

    monkeypatch.setattr(LlamaModel, "forward", forward)
    load = chat.load_chatbot

    def loaded(*arguments: Any, **options: Any) -> Chatbot:
        bot = load(*arguments, **options)
        failing.append(True)  # at the first answer; the self-probe is done
        return bot

    monkeypatch.setattr(chat, "load_chatbot", loaded)
    told = "the model failed while it answered (RuntimeError: mat1 and mat2)"
    for flags in ((), ("--lookahead-off",)):
        result = run(MODEL, "--chat", *flags, typed="Once\nOnce upon a time\n")
        assert result.exit_code == 0, result.output
        assert result.stderr.endswith(f"({told})\n")
        assert "there was a little girl" in result.stdout
    result = run(MODEL, "Once upon a time")
    assert result.exit_code == 1
    assert result.stderr.endswith(f"Error: {told}\n")


def test_commands_in_a_pipe(tmp_path: Path) -> None:
    file = tmp_path / "a chat.json"
    typed = f'"""\nOnce\n\nupon\n"""\n/save \'{file}\'\n/set top_p 2\n/nothing\n/bye\nnot read\n'
    result = run(MODEL, "--chat", typed=typed)
    assert result.exit_code == 0
    assert [message["role"] for message in json.loads(file.read_text())["messages"]] == ["user", "assistant"]
    assert json.loads(file.read_text())["messages"][0]["content"] == "Once\n\nupon"
    assert "top_p must be a number above 0 and at most 1, got 2" in result.stderr
    assert "the command must be one of /help, /clear, " in result.stderr
    assert result.stdout.count("Assistant: ") == 1


def test_markdown_is_shown_without_its_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(self: Chatbot, message: str, write: Any, stopped: Any) -> None:
        for piece in ("# A ti", "tle\n\n- one\n", "- **two**\n"):
            write(piece)

    monkeypatch.setattr(Chatbot, "answer", answer)
    shown = run(MODEL, "--chat", "--markdown", typed="hello\n").stdout
    assert re.search(r"A title.*• one\s*\n • two", shown, re.DOTALL)
    assert "**" not in shown


# Options


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], LookaheadConfig()),
        (
            ["--mode", "lookahead", "--level", "3", "--window_size", "4", "--guess_set_size", "-1"],
            LookaheadConfig(mode="lookahead", ngram=3, window=4, guesses=-1),
        ),
    ],
)
def test_mode_and_sizes_are_the_flags(flags: list[str], expected: LookaheadConfig) -> None:
    assert run(MODEL, "hello", *flags, "--max_new_tokens", "2").exit_code == 0
    assert default_config() == expected


def test_a_corpus(tmp_path: Path) -> None:
    lade.Corpus([[1, 2]]).save(tmp_path / "corpus")
    assert run(MODEL, "hello", "--corpus", str(tmp_path / "corpus"), "--max_new_tokens", "2").exit_code == 0
    assert default_config() == LookaheadConfig(corpus=tmp_path / "corpus")
    (tmp_path / "corpus").write_text("no corpus")
    result = run(MODEL, "hello", "--corpus", str(tmp_path / "corpus"))
    assert result.exit_code == 1
    assert f"Error: corpus='{tmp_path / 'corpus'}': not a safetensors file" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["./nowhere"], "must be a folder, a hub name"),
        (["--model_path", "./nowhere"], "must be a folder, a hub name"),
        (["--draft", "./nowhere"], "--draft.*must be a folder, a hub name"),
        (["--model_type", "parrot"], "auto"),
        (["--max_new_tokens", "0"], "x>=1"),
        (["--temperature", "-1"], "x>=0"),
        (["--top-p", "0"], "0<x<=1"),
        (["--seed", "-1"], "--seed"),
        (["--threads", "0"], "--threads"),
        (["--dtype", "int8"], "float32"),
        (["--device", "abacus"], "abacus"),
        (["--quant", "int3"], "--quant.*nf4"),
        (["--mode", "paper"], "--mode.*auto.*lookahead"),
        (["--use_ds"], "--use-ds.*DeepSpeed"),
        (["--local_rank", "1"], "--local-rank.*must be 0, got 1"),
        (["--level", "1"], "LEVEL must be .*, got 1"),
        (["--window_size", "0"], "WINDOW_SIZE must be .*, got 0"),
        (["--guess_set_size", "0"], "GUESS_SET_SIZE must be .*, got 0"),
        (["--corpus", "./nowhere"], "--corpus.*does not exist"),
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


def test_a_switch_that_is_neither_on_nor_off_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(MODEL, "hello", USE_LADE="perhaps")
    assert result.exit_code == 2
    assert "USE_LADE in the environment must be" in result.stderr


@pytest.mark.parametrize("name", [TARGET, STORIES])
def test_a_small_model_says_what_it_does(name: str) -> None:
    prompt = toys.suggestion(name)
    assert prompt is not None
    assert toys.notice(name, has_template=False)[1] == f"Try: {prompt}"
    text = run(name, prompt, "--max-new-tokens", "60").stdout
    assert re.search(r'""".*sum' if "code" in name else "She", text, re.DOTALL)


def test_other_models_are_told_of_a_missing_template_alone() -> None:
    assert toys.notice("my/model", has_template=True) == []
    assert "no chat template" in toys.notice("my/model", has_template=False)[0]
    assert toys.suggestion("my/model") is None


# The original's script


def test_one_built_in_question_without_chat() -> None:
    result = run_original(typed="this is not read\n")
    assert result.exit_code == 0
    assert result.stdout.startswith(f"User: {script.QUESTION}\nAssistant: ")
    assert result.stdout.count("Assistant: ") == 1


def test_the_originals_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    """USE_LADE=1 switches lookahead on there, and COLOR_PRINT=1 the colours."""
    typed = "Once upon a time\n"
    plain = run_original("--chat", "--debug", typed=typed)
    assert plain.stdout.startswith("User: Once upon a time\nAssistant: ")
    assert re.search(LINE, plain.stdout).groups() == ("24", "23", "1.04", ", plain decoding")
    ahead = run_original("--chat", "--debug", *FIXED, typed=typed, USE_LADE="1", COLOR_PRINT="1")
    assert int(re.search(LINE, ahead.stdout)[2]) < 23
    assert ANSI.search(ahead.stdout)
    assert not ANSI.search(plain.stdout)


@needs_fork
def test_script_answers_what_it_reads() -> None:
    done = run_script(SCRIPT, "--chat", "--max_new_tokens", "4", typed="hello\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("User: hello\nAssistant: ")


@pytest.mark.real
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
