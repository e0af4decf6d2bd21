"""`--pack`: unless told otherwise, commands pack weights that are faster so."""

from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest
import torch
from click.testing import CliRunner
from families import BY_NAME
from tiny import tiny_model
from transformers import PreTrainedModel

import lade
import minimal
from lade.applications import options, warm
from lade.applications.chat import command as chat
from lade.applications.demo import command as demo
from lade.applications.serve import command as serve
from lade.drafters import compiling
from lade.weights import packed
from lade.weights.packing import SHORT, has_packed_weights, packing_of


class StopError(Exception):
    """Behind the model's loading there is nothing to see."""


COMMANDS = [(chat, chat.command, ["--no-color", "hi"]), (demo, demo.command, []), (minimal, minimal.main, [])]
COMMANDS += [(serve, serve.command, ["stories260K"]), (warm, warm.command, ["stories260K"])]


@pytest.mark.parametrize(("given", "pack"), [([], None), (["--pack"], True), (["--no-pack"], False)])
@pytest.mark.parametrize(("module", "command", "others"), COMMANDS, ids=lambda value: getattr(value, "__name__", ""))
def test_commands_say_whether_to_pack(
    module: ModuleType,
    command: click.Command,
    others: list[str],
    given: list[str],
    pack: bool | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`warm` computes many tokens at a time, and packs in every dtype."""
    loaded: list[Any] = []

    def load_model(*names: str, **how: Any) -> None:
        loaded.append(how["pack"])
        raise StopError

    monkeypatch.setattr(module, "load_model", load_model)
    result = CliRunner().invoke(command, [*others, *given], input="hi\n")
    assert isinstance(result.exception, StopError), result.output
    assert loaded == [True if module is warm and pack is None else pack]


@pytest.mark.parametrize("pack", [True, False])
@pytest.mark.usefixtures("small_weights")
def test_models_are_packed_as_they_are_loaded(pack: bool) -> None:
    model: PreTrainedModel = options.load_model("stories260K", dtype="float32", device="cpu", pack=pack)[0]
    assert has_packed_weights(model) == (pack and packed.packs(model.dtype))


@pytest.fixture
def possible(monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be machine code, which is not compiled here."""
    monkeypatch.setattr(compiling, "possible", lambda: True)
    monkeypatch.setattr(compiling, "begin", lambda: None)


@pytest.mark.parametrize(
    ("dtype", "attention", "machine", "packs"),
    [
        ("float32", "sdpa", True, False),
        ("float32", "sdpa", False, True),
        ("float32", "eager", True, True),
        ("bfloat16", "sdpa", True, True),
    ],
)
@pytest.mark.usefixtures("small_weights", "possible")
def test_weights_that_decoding_multiplies_as_they_lie(
    dtype: str, attention: str, machine: bool, packs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of fused layers in float32, where loops are compiled; forwards with eager attention have no such layers."""
    monkeypatch.setattr(compiling, "possible", lambda: machine)
    how = {"dtype": dtype, "attn_implementation": attention, "pack": None}
    model: PreTrainedModel = lade.models.load("stories260K", **how)[0]
    assert has_packed_weights(model) == (packs and (dtype == "bfloat16" or packed.packs(model.dtype)))


@pytest.mark.usefixtures("small_weights", "possible")
def test_layers_of_another_kind_are_packed(tmp_path: Path) -> None:
    """No loop multiplies theirs."""
    tiny_model(BY_NAME["gpt_neox"]).save_pretrained(tmp_path)
    lade.models.load("stories260K")[1].save_pretrained(tmp_path)
    model: PreTrainedModel = lade.models.load(tmp_path, dtype="float32", pack=None)[0]
    assert has_packed_weights(model) == packed.packs(model.dtype)


def saved(folder: Path, **changes: torch.Tensor) -> Path:
    """A model of LLaMA's kind, whose numbers are bfloat16's, but for the changes."""
    model = tiny_model(BY_NAME["llama"])
    weights = {name: weight.bfloat16().float() for name, weight in model.state_dict().items()}
    model.save_pretrained(folder, state_dict=weights | {f"{name}.weight": own for name, own in changes.items()})
    lade.models.load("stories260K")[1].save_pretrained(folder)
    return folder


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.usefixtures("small_weights", "possible")
def test_weights_that_fit_into_16_bits(compiled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are packed so where there is what multiplies them, and not before."""
    monkeypatch.setattr(compiling, "is_compiled", lambda: compiled)
    model: PreTrainedModel = lade.models.load(saved(tmp_path), dtype="float32", pack=None)[0]
    assert packing_of(model) == (SHORT if compiled else "")


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.usefixtures("small_weights", "possible")
def test_weights_that_do_not_fit_into_16_bits(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "is_compiled", lambda: compiled)
    model: PreTrainedModel = lade.models.load("stories260K", dtype="float32", pack=None)[0]
    assert not has_packed_weights(model)


@pytest.mark.usefixtures("small_weights", "possible")
def test_one_weight_that_does_not_fit_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As its layers would be computed product by product."""
    monkeypatch.setattr(compiling, "is_compiled", lambda: True)
    other = tiny_model(BY_NAME["llama"]).lm_head.weight.detach()
    model: PreTrainedModel = lade.models.load(saved(tmp_path, lm_head=other), dtype="float32", pack=None)[0]
    assert not has_packed_weights(model)
    monkeypatch.setattr(packed, "can_lie_in_blocks", lambda weight: False)
    model = lade.models.load(saved(tmp_path), dtype="float32", pack=None)[0]
    assert not has_packed_weights(model)
