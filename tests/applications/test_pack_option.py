"""`--pack`: commands that decode pack weights unless told otherwise."""

from types import ModuleType
from typing import Any

import click
import pytest
from click.testing import CliRunner
from transformers import PreTrainedModel

import minimal
from lade.applications import options, warm
from lade.applications.chat import command as chat
from lade.applications.demo import command as demo
from lade.applications.serve import command as serve
from lade.weights import packed
from lade.weights.packing import has_packed_weights


class StopError(Exception):
    """Behind the model's loading there is nothing to see."""


COMMANDS = [(chat, chat.command, ["--no-color", "hi"]), (demo, demo.command, []), (minimal, minimal.main, [])]
COMMANDS += [(serve, serve.command, ["stories260K"]), (warm, warm.command, ["stories260K"])]


@pytest.mark.parametrize(("given", "pack"), [([], True), (["--pack"], True), (["--no-pack"], False)])
@pytest.mark.parametrize(("module", "command", "others"), COMMANDS, ids=lambda value: getattr(value, "__name__", ""))
def test_commands_say_whether_to_pack(
    module: ModuleType,
    command: click.Command,
    others: list[str],
    given: list[str],
    pack: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded: list[Any] = []

    def load_model(*names: str, **how: Any) -> None:
        loaded.append(how["pack"])
        raise StopError

    monkeypatch.setattr(module, "load_model", load_model)
    result = CliRunner().invoke(command, [*others, *given], input="hi\n")
    assert isinstance(result.exception, StopError), result.output
    assert loaded == [pack]


@pytest.mark.parametrize("pack", [True, False])
@pytest.mark.usefixtures("small_weights")
def test_models_are_packed_as_they_are_loaded(pack: bool) -> None:
    model: PreTrainedModel = options.load_model("stories260K", dtype="float32", device="cpu", pack=pack)[0]
    assert has_packed_weights(model) == (pack and packed.packs(model.dtype))
