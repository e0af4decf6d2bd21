"""How commands end: 2 and the option's name for a wrong value, 130 and a hint for Ctrl-C; and what options are called.

Through `lade`, as users start them, and `minimal.py`. No model is loaded but where an interrupt comes later.
"""

import errno
import json
import os
import re
from importlib import import_module, util
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from lade.applications import cli, exits
from lade.models.shipped import STORIES

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("table_folder", "default_settings")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the command is started: some prompts, a broken file, nothing else."""
    prompts = "".join(
        json.dumps({"prompt": f"{name} had a big"}) + "\n" for name in ("Tom", "Ann", "Tim", "Sue", "Sam", "Kim")
    )
    (tmp_path / "prompts.jsonl").write_text(prompts)
    (tmp_path / "broken.jsonl").write_bytes(b"\xff\xfe")
    for name in ("pipe", "pipe.json") if hasattr(os, "mkfifo") else ():
        os.mkfifo(tmp_path / name)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    monkeypatch.chdir(tmp_path)
    for name in ("USE_LADE", "LOAD_LADE", "COLOR_PRINT"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture(scope="module")
def minimal() -> ModuleType:
    spec = util.spec_from_file_location("minimal_of_exits", ROOT / "minimal.py")
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def start(line: str, minimal: ModuleType, **environment: str) -> Result:
    name, *arguments = line.replace("STORIES", STORIES).split()
    if name == "minimal":
        return CliRunner().invoke(minimal.main, arguments, env=environment)
    return CliRunner().invoke(cli.main, [name, *arguments], env=environment)


# Wrong values

BENCH = "bench STORIES --prompts prompts.jsonl --out out --threads 1"
TUNE = "tune STORIES --prompts prompts.jsonl --out mine.json --threads 1"
SKIP = "skip-search STORIES --prompts prompts.jsonl --out skip.json --threads 1"
LIKELIHOOD = "likelihood STORIES --draft STORIES --prompts prompts.jsonl --threads 1"

WRONG = {  # a command line -> what its error names
    "bench ./nowhere --prompts prompts.jsonl --out out": "MODEL",
    "bench STORIES --prompts missing.jsonl --out out": "--prompts",
    "bench STORIES --prompts broken.jsonl --out out": "--prompts",
    "bench STORIES --prompts . --out out": "--prompts",
    "bench STORIES --suite warp --out out": "--suite",
    "bench STORIES --prompts prompts.jsonl --out prompts.jsonl/out": "--out",
    "bench STORIES --prompts prompts.jsonl": "--out",
    f"{BENCH} --methods warp": "--methods",
    f"{BENCH} --methods ,": "--methods",
    f"{BENCH} --level 1": "--level",
    f"{BENCH} --window-size 0": "--window-size",
    f"{BENCH} --window 0": "--window-size",
    f"{BENCH} --guess-set-size 0": "--guess-set-size",
    f"{BENCH} --budget 0": "--budget",
    f"{BENCH} --lookup-tokens 0": "--lookup-tokens",
    f"{BENCH} --draft ./nowhere --methods draft": "--draft",
    f"{BENCH} --reference-model ./nowhere": "--reference-model",
    f"{BENCH} --methods self_speculative --skip broken.jsonl": "broken.jsonl",
    f"{BENCH} --dtype int3": "--dtype",
    f"{BENCH} --n 0": "--n",
    f"{BENCH} --temperature -1": "--temperature",
    f"{BENCH} --temperature 0,1e-320": "--temperature",
    f"{BENCH} --temperature inf": "--temperature",
    f"{BENCH} --amateur-temperature nan": "--amateur-temperature",
    f"{BENCH} --amateur-temperature 0": "--amateur-temperature",
    "bench-diff missing full": "A B",
    "bench-diff full": "B",
    "bench-report full": "FOLDER",
    "cache --clear everything": "--clear",
    "chat --model ./nowhere": "--model",
    "chat --level 1": "LEVEL",
    "chat --temperature 1e-320": "--temperature",
    "chat --temperature nan": "--temperature",
    "chat --window-size 0": "WINDOW_SIZE",
    "chat --max-new-tokens 0": "--max-new-tokens",
    "chat --device abacus": "--device",
    "corpus ./nowhere prompts.jsonl --out corpus.safetensors": "MODEL",
    "corpus STORIES prompts.jsonl --out corpus.txt": "--out",
    "corpus STORIES missing.jsonl --out corpus.safetensors": "PATHS",
    "demo ./nowhere": "MODEL",
    "demo STORIES --max-new-tokens 0": "--max-new-tokens",
    f"{LIKELIHOOD} --draft-tokens 0": "--draft-tokens",
    f"{LIKELIHOOD} --out no/folder/out.json": "--out",
    f"{LIKELIHOOD} --out full": "--out",
    f"{LIKELIHOOD} --out pipe": "--out",
    "skip-search STORIES --prompts prompts.jsonl --out pipe.json": "--out",
    "tune STORIES --prompts prompts.jsonl --out pipe.json": "--out",
    "likelihood STORIES --draft STORIES --prompts missing.jsonl": "--prompts",
    "likelihood STORIES --draft STORIES --prompts broken.jsonl": "--prompts",
    "likelihood STORIES --draft ./nowhere --prompts prompts.jsonl": "--draft",
    "pull gpt2": "MODEL",
    "serve ./nowhere": "MODEL",
    "serve STORIES --port 70000": "--port",
    "serve STORIES --api-key-file missing.txt": "--api-key-file",
    "skip-search STORIES --prompts missing.jsonl --out skip.json": "--prompts",
    "skip-search STORIES --prompts prompts.jsonl --out skip.txt": "--out",
    f"{SKIP} --trials 0": "--trials",
    f"{SKIP} --draft-adapt often": "--draft-adapt",
    "tune STORIES --prompts missing.jsonl": "--prompts",
    "tune STORIES --prompts broken.jsonl": "--prompts",
    "tune ./nowhere --prompts prompts.jsonl": "MODEL",
    f"{TUNE} --candidates warp": "--candidates",
    f"{TUNE} --repeats 0": "--repeats",
    f"{TUNE} --picture no/folder/x.png": "--picture",
    "tune STORIES --prompts prompts.jsonl --out mine.txt": "--out",
    "warm ./nowhere": "MODEL",
    "warm STORIES --top 0": "--top",
    "warm STORIES --top 513": "--top",
    "warm STORIES --quant int3": "--quant",
    "widen ./nowhere": "MODEL",
    "widen STORIES full": "OUT",
    "widen STORIES --hidden 0": "--hidden",
    "widen STORIES --hidden 32": "--hidden",
    "minimal --model ./nowhere": "--model",
    "minimal --level 1": "LEVEL",
    "minimal --max-new-tokens 0": "--max-new-tokens",
    "minimal --max-new-tokens 9999 --model STORIES": "--max-new-tokens",
    "minimal --temperature 0": "--temperature",
    "minimal --temperature 1e-320": "--temperature",
    "minimal --top-p nan": "--top-p",
}


@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_value_ends_with_2_and_is_named(line: str, folder: Path, minimal: ModuleType) -> None:
    result = start(line, minimal)
    assert result.exit_code == 2, result.output
    assert WRONG[line] in result.stderr.split("Error:")[-1]
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_is_among_them(name: str) -> None:
    assert any(line.split()[0] == name for line in WRONG)


@pytest.mark.parametrize(("line", "name"), [("chat", "USE_LADE"), ("chat", "COLOR_PRINT"), ("minimal", "LOAD_LADE")])
def test_a_wrong_switch_in_the_environment_is_one_too(line: str, name: str, folder: Path, minimal: ModuleType) -> None:
    result = start(line, minimal, **{name: "tru"})
    assert result.exit_code == 2
    assert f"{name} in the environment must be 1, true, yes, on (on), 0, false, no, off (off) or unset" in result.stderr


# Ctrl-C


def interrupt(*_: object, **__: object) -> Any:
    raise KeyboardInterrupt


PLACES = [  # a command line, what of it is interrupted, and what the last line says
    (BENCH, "lade.applications.bench.command.load", exits.AGAIN),
    (f"{BENCH} --memory", "lade.applications.bench.memory_report.bench_memory", exits.AGAIN),
    (BENCH, "lade.applications.bench.session.run_trials", "the same command continues"),
    (
        f"{BENCH} --n 1 --max-new-tokens 2 --methods plain",
        "lade.applications.bench.command.build",
        "the same command continues",
    ),
    ("bench-diff full full", "lade.applications.bench_diff.some_records", exits.AGAIN),
    ("bench-report full", "lade.applications.bench_report.build", exits.AGAIN),
    ("cache", "lade.applications.cache.entries", exits.AGAIN),
    ("chat --max-new-tokens 4", "lade.applications.chat.command.load_model", exits.AGAIN),
    ("chat STORIES hello", "lade.applications.chat.bot.Chatbot.answer", exits.AGAIN),
    ("chat --chat STORIES", "builtins.input", exits.AGAIN),
    ("corpus STORIES prompts.jsonl --out corpus.safetensors", "lade.applications.corpus.tokenised", exits.AGAIN),
    ("demo STORIES --threads 1", "lade.applications.demo.command.load_model", exits.AGAIN),
    (LIKELIHOOD, "lade.applications.likelihood_command.load_model", exits.AGAIN),
    (LIKELIHOOD, "lade.applications.likelihood.compare", exits.AGAIN),
    ("pull smollm2-135m", "lade.applications.pull.is_pulled", exits.AGAIN),
    ("pull smollm2-135m", "lade.models.gguf_llama.find_spec", "the same command continues"),
    ("serve STORIES", "lade.applications.serve.command.load_model", exits.AGAIN),
    ("serve STORIES", "lade.applications.serve.server.Server.run", "the server has ended"),
    (SKIP, "lade.applications.skip_search.load_model", exits.AGAIN),
    (SKIP, "lade.applications.skip_search.run", "skip.journal holds 0 trials; the same command continues"),
    (TUNE, "lade.applications.tune.load_model", exits.AGAIN),
    (TUNE, "lade.applications.tuning.tune", "holds 0 measurements; the same command continues"),
    ("warm STORIES", "lade.applications.warm.load_model", exits.AGAIN),
    ("warm STORIES", "lade.memory.warm.warming.compute", "the same command continues"),
    ("widen STORIES", "lade.applications.widen.load_model", exits.AGAIN),
    ("widen STORIES", "lade.models.widen.widen", exits.AGAIN),
    ("minimal --model STORIES", "transformers.AutoTokenizer.from_pretrained", exits.AGAIN),
    ("minimal --model STORIES --repeats 1", "transformers.GenerationMixin.generate", exits.AGAIN),
    ("minimal --device cpu", "torch.zeros", exits.AGAIN),  # while the options are read
]


@pytest.mark.parametrize(("line", "place", "hint"), PLACES, ids=[f"{line.split()[0]} {at}" for line, at, _ in PLACES])
def test_ctrl_c_ends_with_130_and_a_hint(
    line: str, place: str, hint: str, folder: Path, minimal: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, interrupt)
    result = start(line, minimal)
    assert result.exit_code == 130, result.output
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("interrupted; ")
    assert hint in last
    assert "Aborted" not in result.stderr


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_is_interrupted_above(name: str) -> None:
    assert any(line.split()[0] == name for line, _, _ in PLACES)


def test_ctrl_c_while_a_command_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may import for seconds."""
    monkeypatch.setattr(cli, "import_module", interrupt)
    result = CliRunner().invoke(cli.main, ["warm", "x"])
    assert result.exit_code == 130
    assert "interrupted; " in result.stderr


# What options are called

SAME = {  # settings that several commands have, by the words of their help or their parameter -> the one name
    "max_new_tokens": "--max-new-tokens",
    "level": "--level",
    "window": "--window-size",
    "window_size": "--window-size",
    "guesses": "--guess-set-size",
    "guess_set_size": "--guess-set-size",
    "limit": "--n",
    "out": "--out",
    "threads": "--threads",
    "dtype": "--dtype",
    "device": "--device",
    "seed": "--seed",
    "quant": "--quant",
    "draft_tokens": "--draft-tokens",
    "tokens": "--draft-tokens",
    "prompts": "--prompts",
}
KEPT = [  # a spelling that once was published, and the command that takes it still
    *((name, "chat") for name in ("--model_path", "--model_type", "--max_new_tokens", "--cache_dir")),
    *((name, "chat") for name in ("--window_size", "--guess_set_size", "--use_ds", "--local_rank")),
    *((name, "bench") for name in ("--ngram", "--window", "--guesses", "--gamma", "--limit")),
    *((name, "skip-search") for name in ("--tokens", "--adapt")),
    ("--tokens", "likelihood"),
    ("--draft-free", "tune"),
]


def command_of(name: str, minimal: ModuleType) -> click.Command:
    found: click.Command = minimal.main if name == "minimal" else import_module(cli.COMMANDS[name][0]).command
    return found


@pytest.mark.parametrize("name", [*cli.COMMANDS, "minimal"])
def test_a_setting_has_one_name_in_all_commands(name: str, minimal: ModuleType) -> None:
    for option in command_of(name, minimal).params:
        if isinstance(option, click.Option):
            shown = [spelling for spelling in (*option.opts, *option.secondary_opts) if spelling.startswith("-")]
            assert len(option.opts) == 1, f"{name}: {shown}"
            assert all(re.fullmatch(r"--[a-z]+(-[a-z]+)*", spelling) for spelling in shown), shown
            assert SAME.get(str(option.name), shown[0]) == shown[0]


@pytest.mark.parametrize(("spelling", "name"), KEPT)
def test_older_spellings_are_taken_and_not_shown(spelling: str, name: str, minimal: ModuleType) -> None:
    command = command_of(name, minimal)
    told = CliRunner().invoke(command, ["--help"]).output
    assert not re.search(rf"{spelling}\b(?!-)", told)
    context = click.Context(command)
    taken = command.make_parser(context)._long_opt
    assert spelling in taken


def test_an_older_spelling_gives_the_same_setting(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = []
    monkeypatch.setattr("lade.applications.chat.command.configure_lade", lambda **settings: given.append(settings))
    monkeypatch.setattr("lade.applications.chat.command.load_model", interrupt)
    for spelling in ("--window_size", "--window-size"):
        CliRunner().invoke(cli.main, ["chat", spelling, "9"])
    assert given[0] == given[1]
    assert given[0]["WINDOW_SIZE"] == 9


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e999"])
@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("chat stories260K hi --temperature {}", "--temperature"),
        ("chat stories260K hi --top-p {}", "--top-p"),
        ("serve --grace {}", "--grace"),
        ("serve --stream-interval {}", "--stream-interval"),
        ("bench stories260K --contrast-weight {} --out made", "--contrast-weight"),
        ("skip-search stories260K --prompts prompts.jsonl --out made --threshold {}", "--threshold"),
        ("likelihood stories260K --draft stories260K --prompts prompts.jsonl --temperature {}", "--temperature"),
    ],
    ids=lambda line: line[:20],
)
def test_numbers_are_finite(line: str, option: str, value: str, folder: Path, minimal: ModuleType) -> None:
    result = start(line.format(value), minimal)
    assert (result.exit_code, option in result.output) == (2, True), result.output
    assert not (folder / "made").exists()


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("bench stories260K --seed 99999999999999999999 --out made", "--seed"),
        ("skip-search stories260K --prompts prompts.jsonl --out made --seed 4294967296", "--seed"),
        ("tune stories260K --draft stories260K --prompts prompts.jsonl --out made --seed -1", "--seed"),
        ("chat stories260K hi --threads 999999999999", "--threads"),
    ],
    ids=lambda line: line[:20],
)
def test_integers_are_bounded(line: str, option: str, folder: Path, minimal: ModuleType) -> None:
    result = start(line, minimal)
    assert (result.exit_code, option in result.output) == (2, True), result.output
    assert not (folder / "made").exists()


def test_closed_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in exits.STREAMS:
        monkeypatch.setattr(exits.sys, name, None)
    with pytest.raises(SystemExit) as ended:
        cli.main(["cache"])
    assert ended.value.code == 0
    with pytest.raises(SystemExit) as ended:
        cli.main(["chat", "no/such/model", "hi"])
    assert ended.value.code == 2
    for name in exits.STREAMS:
        getattr(exits.sys, name).close()


@pytest.mark.parametrize("arguments", [[], ["--show"]], ids=["command", "option"])
def test_a_full_disk(arguments: list[str]) -> None:
    """Behind stdout too, where an option such as --help already writes."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "a/file")

    def shown(context: click.Context, parameter: click.Parameter, value: bool) -> None:
        if value:
            full()

    show = click.Option(["--show"], is_flag=True, is_eager=True, expose_value=False, callback=shown)
    result = CliRunner().invoke(exits.Command("command", params=[show], callback=full), arguments)
    assert result.exit_code == 1
    assert result.output == "Error: [Errno 28] No space left on device: 'a/file'\n"


@pytest.mark.parametrize("line", ["pull smollm2-135m", "demo STORIES --threads 1"])
def test_a_user_without_a_home(line: str, minimal: ModuleType) -> None:
    result = start(line, minimal, LADE_CACHE="~nobody-of-this-name/cache")
    assert result.exit_code == 1, result.output
    assert "Traceback" not in result.stderr
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("Error: ")
    assert last.endswith("LADE_CACHE can name the folder for caches")
