"""The search for sub-layers to leave out: it finds those that do nothing, stores its trials, and can go on."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from counting import told_of
from stories import PROMPTS
from transformers import PreTrainedModel

import lade
from lade.applications.search.effects import effects, sub_layers
from lade.applications.search.skipsearch import FINALISTS, first_sets, open_study, search
from lade.applications.skip_search import Drafting, generated, run
from lade.models import load
from lade.models.widen import own_sizes, widen
from lade.target.skipping import decoder_layers
from lade.target.skipset import SkipSet

HEAD = {"model": "a"}
SUB_LAYERS = [(kind, layer) for kind in ("attention", "mlp") for layer in range(4)]
USELESS = SkipSet((1, 3), (0,))


def silent(done: int, total: int) -> None:
    """No bar."""


class Machine:
    """Sub-layers cost a second each; without a useful one, tokens come at a fifth."""

    def __init__(self) -> None:
        self.runs: list[tuple[SkipSet, int]] = []

    def __call__(self, layers: SkipSet, prompt: int) -> tuple[int, float]:
        self.runs.append((layers, prompt))
        harmful = len(set(layers.attention) - {1, 3}) + len(set(layers.mlp) - {0})
        return 60, (9 - len(layers)) * 5.0**harmful


def test_what_does_nothing_is_found(tmp_path: Path) -> None:
    """From the empty set alone."""
    machine = Machine()
    outcome = search(open_study(tmp_path / "j", HEAD, 0), SUB_LAYERS, 2, machine, 60, [SkipSet()], silent)
    assert outcome.best == USELESS
    assert outcome.speed == pytest.approx(60 / 6)
    assert outcome.nothing == pytest.approx(60 / 9)
    assert outcome.trials[0] == 60


def test_slow_sets_are_pruned(tmp_path: Path) -> None:
    machine = Machine()
    outcome = search(open_study(tmp_path / "j", HEAD, 0), SUB_LAYERS, 4, machine, 40, [SkipSet()], silent)
    assert outcome.trials[1] < 40
    again = 4 * (FINALISTS + 1)  # and nothing left out
    assert len(machine.runs) - again < 4 * 40


def test_a_search_goes_on_where_it_stopped(tmp_path: Path) -> None:
    progress: list[tuple[int, int]] = []
    machine = Machine()

    def stop(layers: SkipSet, prompt: int) -> tuple[int, float]:
        if len(machine.runs) == 20:
            raise KeyboardInterrupt
        return machine(layers, prompt)

    with pytest.raises(KeyboardInterrupt):
        search(open_study(tmp_path / "j", HEAD, 0), SUB_LAYERS, 2, stop, 30, [SkipSet(), USELESS], silent)
    study = open_study(tmp_path / "j", HEAD, 0)
    ended = sum(trial.state.is_finished() for trial in study.trials)
    assert 9 <= ended < 30
    outcome = search(study, SUB_LAYERS, 2, machine, 30, [], lambda *at: progress.append(at))
    assert progress == [(done, 30) for done in range(ended, 31)]
    assert outcome.best == USELESS
    assert outcome.trials[0] == 30


def test_an_incomplete_line_is_left_out(tmp_path: Path) -> None:
    """A killed process leaves it."""
    journal = tmp_path / "j"
    search(open_study(journal, HEAD, 0), SUB_LAYERS, 2, Machine(), 3, [], silent)
    journal.write_bytes(journal.read_bytes()[:-9])
    for done in (2, 4):
        study = open_study(journal, HEAD, 0)
        assert sum(trial.state.is_finished() for trial in study.trials) == done
        search(study, SUB_LAYERS, 2, Machine(), done + 2, [], silent)
    journal.write_bytes(journal.read_bytes()[:40])
    assert not open_study(journal, HEAD, 0).trials


def test_a_journal_of_something_else_is_refused(tmp_path: Path) -> None:
    open_study(tmp_path / "j", HEAD, 0)
    with pytest.raises(ValueError, match="holds trials with model 'a', not 'b'"):
        open_study(tmp_path / "j", {"model": "b"}, 0)
    for text in ("no journal\n", '{"no": "journal"}'):
        (tmp_path / "text").write_text(text)
        with pytest.raises(ValueError, match="text: is not the journal of a search"):
            open_study(tmp_path / "text", HEAD, 0)
        assert (tmp_path / "text").read_text() == text


def test_first_sets_leave_out_what_matters_least() -> None:
    effects = {("attention", 0): 3.0, ("attention", 1): 0.0, ("mlp", 0): 0.5, ("mlp", 1): 0.0}
    assert first_sets(effects) == [SkipSet(), SkipSet((1,)), SkipSet((1,), (1,))]


# A model


@pytest.fixture(scope="module")
def deep() -> PreTrainedModel:
    """The model that ships, with two layers behind its own that change nothing."""
    model, _ = load("stories260K")
    sizes = own_sizes(model)
    return widen(model, **sizes | {"num_layers": sizes["num_layers"] + 2})


@pytest.fixture
def ticking(deep: PreTrainedModel) -> Any:
    """A clock that moves when a sub-layer runs, and a little with every forward."""
    seconds = [0.0]

    def tick(by: float) -> Callable[..., None]:
        return lambda *_: seconds.__setitem__(0, seconds[0] + by)

    with contextlib.ExitStack() as told:
        for layer in decoder_layers(deep):
            for part in (layer.self_attn.o_proj, layer.mlp.down_proj):
                told.enter_context(told_of(part, tick(1.0)))
        told.enter_context(told_of(deep, tick(0.5)))
        yield lambda: seconds[0]


def test_effects_tell_what_does_nothing(deep: PreTrainedModel) -> None:
    _, tokenizer = load("stories260K")
    ids = tokenizer(PROMPTS[0], return_tensors="pt").input_ids
    found = effects(deep, [ids])
    assert list(found) == sub_layers(deep)
    last = len(decoder_layers(deep)) - 1
    assert {key for key, loss in found.items() if loss < 1e-4} == {
        (kind, layer) for kind in ("attention", "mlp") for layer in (last - 1, last)
    }


def test_identity_layers_are_found(deep: PreTrainedModel, ticking: Callable[[], float], tmp_path: Path) -> None:
    """More tokens per second than with nothing left out, and the text of plain decoding."""
    _, tokenizer = load("stories260K")
    prompts = [tokenizer(PROMPTS[0], return_tensors="pt").input_ids]
    drafting = Drafting(tokens=4, adapt="fixed", threshold=0.6, max_new_tokens=10, temperature=0.0, seed=0)
    outcome = run(open_study(tmp_path / "j", HEAD, 0), deep, prompts, drafting, 12, silent, ticking)
    last = len(decoder_layers(deep)) - 1
    assert {last - 1, last} <= set(outcome.best.attention)
    assert {last - 1, last} <= set(outcome.best.mlp)
    assert outcome.speed > outcome.nothing
    assert torch.equal(generated(deep, prompts[0], drafting, outcome.best), generated(deep, prompts[0], drafting))
    assert lade.last_stats().fallback is None
