"""What importing `lade` and asking its command for help load, and the names that are then there."""

import ast
import importlib
import pickle
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from forks import forget_lade, needs_fork, run_in_a_child

import lade
from lade.applications.cli import COMMANDS

ROOT = Path(__file__).parents[1]
HEAVY = ("torch", "transformers", "safetensors.torch")
# Runs statements in a fresh interpreter and prints which of the heavy packages are loaded after each.
PROBE = """
import contextlib, io, sys
for statement in {statements}:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        exec(statement)
    print([name for name in {heavy} if name in sys.modules])
"""


@cache
def loaded_after(statements: tuple[str, ...]) -> dict[str, str]:
    code = PROBE.format(statements=statements, heavy=HEAVY)
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    return dict(zip(statements, told.splitlines(), strict=True))


def loaded_by(statement: str) -> str:
    return loaded_after((statement,))[statement]


@pytest.mark.parametrize(
    "statement",
    [
        "import lade",
        "import lade; dir(lade), lade.__version__, lade.__all__",
        "import lade.config.settings; lade.config.settings.LookaheadConfig(); lade.config_lade(DEBUG=0)",
        "import lade; lade.LookaheadConfig(window=3)",
        "import lade.models; lade.models.load",
    ],
)
def test_importing_lade_loads_no_model_library(statement: str) -> None:
    assert loaded_by(statement) == "[]"


HELP = tuple(
    f"from lade.applications.cli import main; main({arguments!r})"
    for arguments in (["--version"], ["--help"], *([name, "--help"] for name in sorted(COMMANDS)))
)


@pytest.mark.parametrize("statement", HELP)
def test_help_of_the_command_loads_no_model_library(statement: str) -> None:
    """One after the other in one interpreter, which takes a while to start: behind one that loads some, all are red."""
    assert loaded_after(HELP)[statement] == "[]"


@needs_fork
def test_every_public_name_is_there_whatever_was_used_before() -> None:
    """A module of the same name would hide it once it is loaded; the last names of the list come first here."""
    assert not [name for name in lade.__all__ if find_spec(f"lade.{name}")]

    def use_all() -> None:
        forget_lade()
        exec(f"import lade; assert all(callable(getattr(lade, name)) for name in {lade.__all__[::-1]})", {})

    done = run_in_a_child(use_all)
    assert done.returncode == 0, done.stderr


FIRST_USE = """
import threading
import torch
import lade

before, failed, start = torch.get_rng_state(), [], threading.Barrier(len(lade.__all__) + 1)
def use(name):
    with torch.inference_mode(), torch.device("meta"):
        start.wait()
        try:
            getattr(lade, name)
        except BaseException as error:
            failed.append(f"{name}: {error!r}")
def load():
    start.wait()
    failed.extend([] if lade.models.load("stories260K") else ["load"])
threads = [threading.Thread(target=use, args=(name,)) for name in lade.__all__] + [threading.Thread(target=load)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not failed, failed
assert torch.equal(before, torch.get_rng_state())
model, tokenizer = lade.models.load("stories260K")
inputs = tokenizer("Once upon a time", return_tensors="pt")
settings = {"do_sample": False, "max_new_tokens": 20}
assert lade.generate(model, **inputs, **settings).tolist() == model.generate(**inputs, **settings).tolist()
"""


@pytest.mark.real
def test_the_first_use_may_be_anywhere() -> None:
    """In many threads at once, inside scopes of torch; none of it stays in a module, and no random number is taken."""
    result = subprocess.run([sys.executable, "-c", FIRST_USE], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_what_type_checkers_read_is_what_is_imported() -> None:
    tree = ast.parse((ROOT / "lade/__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    told = {alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert told.pop("models") == "lade"
    assert sorted(told) == sorted(lade.__all__)
    for name, module in told.items():
        assert getattr(lade, name) is getattr(importlib.import_module(module or ""), name)


def test_dir_shows_the_public_names_alone() -> None:
    for module in ("lade.entry.api", "lade.core.tree", "lade.models.load"):
        importlib.import_module(module)
    assert [name for name in dir(lade) if not name.startswith("__")] == sorted([*lade.__all__, "models"])
    assert {"__version__", "__doc__", "__all__"} <= set(dir(lade))


def test_modules_of_the_package_are_reached_through_it() -> None:
    code = "import lade; lade.config, lade.applications, lade.models.shipped.NAMES, lade.models.load"
    subprocess.run([sys.executable, "-c", code], check=True)
    importlib.import_module("lade.models.load")
    assert callable(lade.models.load)
    assert callable(lade.memory.warm.warming.cached)


@pytest.mark.parametrize("name", ["nothing", "_private", "__wrapped__", "Generate"])
def test_a_name_that_is_not_there_is_an_attribute_error(name: str) -> None:
    with pytest.raises(AttributeError, match=f"module 'lade' has no attribute '{name}'"):
        getattr(lade, name)


def test_a_module_that_fails_says_so_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """An import error inside a module of lade is not a name that is missing."""
    monkeypatch.delattr(lade, "warm_up", raising=False)
    monkeypatch.setitem(sys.modules, "lade.entry.warming", None)
    with pytest.raises(ImportError, match=r"lade\.entry\.warming"):
        _ = lade.warm_up


def test_public_names_can_be_replaced_and_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    original = lade.warm_up
    with monkeypatch.context() as patch:
        patch.setattr(lade, "warm_up", len)
        assert lade.warm_up is len
    assert lade.warm_up is original


def test_settings_can_be_pickled() -> None:
    config = lade.LookaheadConfig(window=3)
    assert pickle.loads(pickle.dumps(config)) == config


LIGHT = tuple(
    f"import lade.{name}"
    for name in (
        "config.default",
        "config.preset",
        "memory.warm.progress",
        "target.skipset",
        "applications.search.autotune",
        "models.quant",
    )
)


@pytest.mark.parametrize("statement", LIGHT)
def test_modules_that_need_no_model_library_load_none(statement: str) -> None:
    assert loaded_after(LIGHT)[statement] == "[]"


def test_python_m_lade_is_the_command() -> None:
    result = subprocess.run([sys.executable, "-m", "lade", "--version"], check=True, capture_output=True, text=True)
    assert result.stdout.startswith("lade, version ")
