"""minimal.py, the README's main command: as a user starts it, and what it refuses."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner, Result

import lade

SCRIPT = Path(__file__).parents[1] / "minimal.py"
BOTH = {"USE_LADE": "1", "LOAD_LADE": "1"}
pytestmark = pytest.mark.usefixtures("default_settings")


@pytest.fixture(scope="module")
def minimal() -> ModuleType:
    spec = spec_from_file_location("minimal", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["minimal"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def leave_as_found(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("USE_LADE", raising=False)
    monkeypatch.delenv("LOAD_LADE", raising=False)
    yield
    lade.restore_all()


def run(minimal: ModuleType, *arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(minimal.main, ["--repeats", "1", *arguments], env=environment)


@pytest.mark.compat
def test_main_command() -> None:
    environment = os.environ | BOTH | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPT), "--repeats", "2", "--max-new-tokens", "128"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("One day, Lily")
    assert "texts identical:  yes" in done.stdout
    assert float(re.search(r"tokens per step:  ([\d.]+), 128 tokens", done.stdout)[1]) > 1.4
    assert re.search(r"ratio: +[\d.]+, median of 2", done.stdout)


def test_plain_without_both_variables(minimal: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lade, "augment_all", lambda: pytest.fail("augment_all() was called"))
    for environment in ({}, {"USE_LADE": "1"}, {"LOAD_LADE": "1"}, {"USE_LADE": "0", "LOAD_LADE": "1"}):
        result = run(minimal, "--max-new-tokens", "4", **environment)
        assert result.exit_code == 0
        assert "plain:" in result.output
        assert "lookahead" not in result.output


def test_sampled_texts_are_identical_too(minimal: ModuleType) -> None:
    sampling = ["--sample", "--temperature", "0.9", "--top-k", "20", "--top-p", "0.95", "--seed", "3"]
    result = run(minimal, *sampling, "--max-new-tokens", "64", **BOTH)
    greedy = run(minimal, "--max-new-tokens", "64", **BOTH)
    assert "texts identical:  yes" in result.output
    assert result.stdout.splitlines()[0] != greedy.stdout.splitlines()[0]


def test_window_flags_reach_lade(minimal: ModuleType) -> None:
    run(minimal, "--level", "3", "--window-size", "4", "--guess-set-size", "-1", "--max-new-tokens", "8", **BOTH)
    config = lade.config_lade()
    assert (config.ngram, config.window, config.guesses) == (3, 4, -1)


def test_model_from_a_folder(minimal: ModuleType) -> None:
    folder = SCRIPT.parent / "models" / "pretrained" / "stories260K"
    result = run(minimal, "--model", str(folder), "--prompt", "Once upon a time", "--max-new-tokens", "12")
    assert result.stdout.startswith(", there was a little girl")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "./nowhere"], "--model.*allowed is a folder or a hub name"),
        (["--prompt", ""], "--prompt.*empty"),
        (["--max-new-tokens", "0"], "--max-new-tokens.*x>=1"),
        (["--temperature", "0"], "--temperature.*x>0"),
        (["--top-p", "1.5"], "--top-p.*0<x<=1"),
        (["--top-k", "-1"], "--top-k.*x>=0"),
        (["--dtype", "int8"], "--dtype.*float32"),
        (["--device", "abacus"], "--device.*abacus"),
        (["--level", "1"], "LEVEL=1: allowed"),
        (["--window-size", "0"], "WINDOW_SIZE=0: allowed"),
        (["--guess-set-size", "0"], "GUESS_SET_SIZE=0: allowed"),
        (["--repeats", "0"], "--repeats.*x>=1"),
    ],
)
def test_bad_input_is_refused_before_a_model_is_loaded(
    minimal: ModuleType, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.setattr(minimal, "load_model", lambda *_, **__: pytest.fail("a model was loaded"))
    result = run(minimal, *arguments)
    assert result.exit_code == 2
    assert re.search(message, " ".join(result.output.split()))


def test_text_longer_than_the_positions_is_refused(minimal: ModuleType) -> None:
    result = run(minimal, "--prompt", "Once upon a time", "--max-new-tokens", "508")
    assert result.exit_code == 2
    assert "508 is too many: the prompt has 5 tokens and the model 512 positions" in result.output


def test_difference_names_the_first_token_that_differs(minimal: ModuleType) -> None:
    assert minimal.difference([1, 2, 3], [1, 2, 3]) == "yes"
    assert minimal.difference([1, 2, 3], [1, 5, 3]) == "no, they part at new token 1"
    assert minimal.difference([1, 2, 3], [1, 2]) == "no, they part at new token 2"
