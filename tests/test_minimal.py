"""minimal.py, the README's main command: as a user starts it, and what it refuses."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import pytest
from click.testing import CliRunner, Result

import lade
from lade.config.settings import Settings
from lade.core.drafter import Drafter
from lade.drafters.factory import drafter_for
from lade.engine import decoding
from lade.measure.audit import Parting
from lade.memory.warm import warming as warm
from lade.models import load
from lade.models.shipped import DRAFT, PROMPTS, STORIES, TARGET

SCRIPT = Path(__file__).parents[1] / "minimal.py"
BOTH = {"USE_LADE": "1", "LOAD_LADE": "1"}
BEGINNINGS = {
    TARGET: "    sum = 0",
    DRAFT: "    sum = 0",
    STORIES: "One day, Lily",
}  # of what the models that ship make of their own prompts
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


@pytest.fixture(scope="module", autouse=True)
def tables_of_short_texts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Each warm table is made once for all tests without a folder of their own, in a fraction of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lade.memory.warm.texts.LENGTH", 8)
        patch.setenv("LADE_CACHE", str(tmp_path_factory.mktemp("tables")))
        yield


@pytest.fixture(autouse=True)
def leave_as_found(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("USE_LADE", raising=False)
    monkeypatch.delenv("LOAD_LADE", raising=False)
    yield
    lade.restore_all()


def run(minimal: ModuleType, *arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(minimal.main, ["--model", STORIES, "--repeats", "1", *arguments], env=environment)


def assert_compared(stdout: str, model: str) -> None:
    """Texts, their identity, drafts and speed, as the main command shows them."""
    prompt, texts = stdout.split("┏")
    begins = re.escape(BEGINNINGS[model])
    assert prompt.strip() == PROMPTS[model].strip()
    assert re.search(rf"│ {begins}.*│ {begins}", texts)
    assert "texts identical:  yes" in stdout
    drafted = float(re.search(r"tokens per step:  ([\d.]+), \d+ tokens", stdout)[1])
    assert drafted > 1  # how many of them depends on what this machine lets wider steps cost
    assert re.search(r"ratio: +[\d.]+, median of 2", stdout)
    assert re.search(r"repetition: +\d+% of the 4-grams", stdout)


IN_FLOAT32 = ("--dtype", "float32", "--repeats", "2", "--max-new-tokens", "32")  # where no near-tie parts the texts


@pytest.mark.compat
@pytest.mark.real
@pytest.mark.usefixtures("table_folder")
def test_main_command() -> None:
    """As a user starts it, where the warm table is made already."""
    warm.warm_up(load(STORIES, dtype="float32")[0])
    environment = os.environ | BOTH | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPT), "--model", STORIES, *IN_FLOAT32]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert_compared(done.stdout, STORIES)


@pytest.mark.compat
@pytest.mark.usefixtures("table_folder")
@pytest.mark.parametrize("model", [TARGET, DRAFT])
def test_other_models_that_ship(minimal: ModuleType, model: str) -> None:
    assert_compared(run(minimal, "--model", model, *IN_FLOAT32, **BOTH).stdout, model)


def test_the_pairs_target_is_the_default(minimal: ModuleType) -> None:
    default = CliRunner().invoke(minimal.main, ["--repeats", "1", "--max-new-tokens", "4"])
    assert default.stdout.startswith(PROMPTS[TARGET])
    named = run(minimal, "--model", TARGET, "--max-new-tokens", "4")
    assert named.stdout.split("\nplain:")[0] == default.stdout.split("\nplain:")[0]


def test_plain_without_both_variables(minimal: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lade, "augment_all", lambda: pytest.fail("augment_all() was called"))
    for environment in ({}, {"USE_LADE": "1"}, {"LOAD_LADE": "1"}, {"USE_LADE": "0", "LOAD_LADE": "1"}):
        result = run(minimal, "--max-new-tokens", "4", **environment)
        assert result.exit_code == 0
        assert "plain:" in result.output
        assert "lookahead" not in result.output


COMPARE = "with USE_LADE=1 and LOAD_LADE=1 both methods run and are compared"


@pytest.mark.parametrize(
    ("environment", "missing"),
    [
        ({}, None),
        ({"USE_LADE": "0"}, None),
        ({"USE_LADE": "0", "LOAD_LADE": "0"}, None),
        ({"USE_LADE": "1"}, "LOAD_LADE=1 is missing"),
        ({"LOAD_LADE": "1"}, "USE_LADE=1 is missing"),
        ({"USE_LADE": "0", "LOAD_LADE": "true"}, "USE_LADE=1 is missing"),
        ({"USE_LADE": "yes", "LOAD_LADE": "true"}, None),
    ],
)
def test_a_variable_that_is_missing_is_told(
    minimal: ModuleType, environment: dict[str, str], missing: str | None
) -> None:
    result = run(minimal, "--max-new-tokens", "4", **environment)
    assert result.exit_code == 0
    assert (COMPARE in result.stderr) is (missing is not None)
    assert (missing or "") in result.stderr
    assert "missing" not in result.stdout


def test_sampled_texts_are_identical_too(minimal: ModuleType) -> None:
    sampling = ["--sample", "--temperature", "0.9", "--top-k", "20", "--top-p", "0.95", "--seed", "3"]
    result = run(minimal, *sampling, "--max-new-tokens", "32", **BOTH)
    greedy = run(minimal, "--max-new-tokens", "32", **BOTH)
    assert "texts identical:  yes" in result.output
    assert result.stdout.split("┏")[1].splitlines()[3] != greedy.stdout.split("┏")[1].splitlines()[3]


FLAGS = [["--level", "3"], ["--window-size", "4"], ["--guess-set-size", "-1"]]


@pytest.mark.parametrize(("arguments", "mode"), [([], "auto"), (["--mode", "lookahead"], "lookahead")])
def test_window_flags_reach_lade(
    minimal: ModuleType, arguments: list[str], mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every run, though plain decoding between them switches lade off."""
    taken: list[Settings] = []

    def made(model: Any, settings: Settings, *arguments: Any) -> Drafter:
        taken.append(settings)
        return drafter_for(model, settings, *arguments)

    monkeypatch.setattr(decoding, "drafter_for", made)
    run(minimal, *arguments, *chain.from_iterable(FLAGS), "--max-new-tokens", "8", "--repeats", "2", **BOTH)
    assert len(taken) == 3
    for settings in taken:
        assert (settings.ngram, settings.window, settings.guesses, settings.mode) == (3, 4, -1, mode)


@pytest.mark.parametrize("flags", [[], *FLAGS])
def test_the_papers_algorithm_runs_without_a_table(
    minimal: ModuleType, flags: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lade, "warm_up", lambda *_, **__: pytest.fail("a warm table was asked for"))
    assert run(minimal, "--mode", "lookahead", *flags, "--max-new-tokens", "4", **BOTH).exit_code == 0
    assert lade.last_stats().proposed.keys() <= {"window", "ngram"}


@pytest.mark.parametrize("flags", [["--mode", "auto"], *FLAGS])
def test_auto_takes_the_table_whatever_its_window_is_limited_to(
    minimal: ModuleType, flags: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Mock()
    monkeypatch.setattr(lade, "warm_up", made)
    assert run(minimal, *flags, "--max-new-tokens", "4", **BOTH).exit_code == 0
    made.assert_called_once()


@pytest.mark.usefixtures("table_folder")
def test_without_window_flags_the_warm_table_is_made_once(minimal: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm, "compute", Mock(wraps=warm.compute))
    for _ in range(2):
        assert run(minimal, "--max-new-tokens", "32", **BOTH).exit_code == 0
    assert warm.compute.call_count == 1
    assert lade.last_stats().proposed["warm"] > 0


def test_a_model_without_a_table_is_decoded_all_the_same(minimal: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ValueError("model must be a model without an encoder, got T5")

    monkeypatch.setattr(lade, "warm_up", refuse)
    result = run(minimal, "--max-new-tokens", "4", **BOTH)
    assert result.exit_code == 0
    assert "no warm table: model must be" in result.stderr
    assert "tokens per step:" in result.stdout


def test_model_from_a_folder(minimal: ModuleType) -> None:
    folder = SCRIPT.parent / "models" / "pretrained" / "stories260K"
    result = run(minimal, "--model", str(folder), "--prompt", "Once upon a time", "--max-new-tokens", "12")
    assert "│ , there was a little girl" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "./nowhere"], "--model.*must be a folder, a hub name"),
        (["--prompt", ""], "--prompt.*must have at least one character"),
        (["--max-new-tokens", "0"], "--max-new-tokens.*x>=1"),
        (["--temperature", "0"], "--temperature.*x>=1e-05"),
        (["--top-p", "1.5"], "--top-p.*0<x<=1"),
        (["--top-k", "-1"], "--top-k.*x>=0"),
        (["--dtype", "int8"], "--dtype.*float32"),
        (["--device", "abacus"], "--device.*abacus"),
        (["--mode", "paper"], "--mode.*auto.*lookahead"),
        (["--level", "1"], "LEVEL must be .*, got 1"),
        (["--window-size", "0"], "WINDOW_SIZE must be .*, got 0"),
        (["--guess-set-size", "0"], "GUESS_SET_SIZE must be .*, got 0"),
        (["--level", "1000000"], "LEVEL must be .* at most 256, got 1000000"),
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
    assert "must fit the model's 512 positions with a prompt of 5 tokens, got 508" in result.output


def job(minimal: ModuleType, **settings: object) -> Any:
    model, tokenizer = load(STORIES, dtype="bfloat16")
    return minimal.Job(model, tokenizer("Once upon a time", return_tensors="pt"), 0, {"do_sample": False} | settings)


def test_difference_names_the_first_token_that_differs(minimal: ModuleType) -> None:
    one, other, beginning = (minimal.TimedCall(tokens, 1.0) for tokens in ([1, 2, 3], [1, 5, 3], [1, 2]))
    assert minimal.difference(job(minimal), one, one) == "yes"
    assert minimal.difference(job(minimal, do_sample=True), one, other) == "no, they differ from new token 1 on"
    assert minimal.difference(job(minimal), one, beginning) == "no, they differ from new token 2 on"


def test_greedy_texts_part_at_a_near_tie_or_it_is_said(minimal: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = (minimal.TimedCall(tokens, 1.0) for tokens in ([1, 2, 3], [1, 5, 3]))
    for gap, words in ((0.1, "a near-tie"), (0.9, "and rounding does not explain it")):
        monkeypatch.setattr(minimal, "parting", lambda *_, gap=gap: Parting(6, (2, 5), gap, ulp=0.01, allowed=0.5))
        assert minimal.difference(job(minimal), one, other) == f"no, they differ from new token 1 on, {words}"
