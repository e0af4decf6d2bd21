"""Switches in the environment: which spellings there are, and what becomes of another one."""

import pytest
from click.testing import CliRunner
from families import BRANCHABLE
from tiny import tiny_model, words
from transformers import PreTrainedModel

import lade
from lade.applications.chat import command as chat
from lade.applications.chat.settings import ChatSettings
from lade.base import environment
from lade.base.environment import EnvironmentWarning, lenient_switch, switch

LLAMA = next(family for family in BRANCHABLE if family.name == "llama")
ON, OFF = ("1", "true", "TRUE", "Yes", "on", " 1 "), ("0", "false", "False", "NO", "off")
WRONG = ("2", "tru", "enabled", "01", "-1", "none")


def looks_ahead(model: PreTrainedModel) -> bool:
    before = len(lade.log_history())
    model.generate(**words(5), max_new_tokens=4, do_sample=False)
    return len(lade.log_history()) > before


@pytest.fixture(autouse=True)
def unwarned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_warned", set())


@pytest.mark.parametrize("value", [*ON, *OFF])
def test_the_usual_spellings_are_known(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_SWITCH", value)
    for default in (True, False):
        assert switch("SOME_SWITCH", default) is lenient_switch("SOME_SWITCH", default) is (value in ON)


@pytest.mark.parametrize("default", [True, False])
def test_unset_and_empty_are_the_default(default: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOME_SWITCH", raising=False)
    assert switch("SOME_SWITCH", default) is default
    monkeypatch.setenv("SOME_SWITCH", "")
    assert switch("SOME_SWITCH", default) is default


@pytest.mark.parametrize("value", WRONG)
def test_another_value_is_named(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_SWITCH", value)
    with pytest.raises(ValueError, match="SOME_SWITCH in the environment must be 1, true, yes, on ") as caught:
        switch("SOME_SWITCH", True)
    assert repr(value) in str(caught.value)
    with pytest.warns(EnvironmentWarning, match=f"{value!r}; taken as on, as if it were unset"):
        assert lenient_switch("SOME_SWITCH", True)
    assert lenient_switch("SOME_SWITCH", True)  # said once: a second warning would be an error


@pytest.mark.parametrize(("value", "on"), [*((value, True) for value in ON), *((value, False) for value in OFF)])
def test_use_lade_switches_generate(value: str, on: bool, augmented: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USE_LADE", value)
    assert looks_ahead(tiny_model(LLAMA)) is on


@pytest.mark.parametrize("value", WRONG)
def test_a_wrong_use_lade_ends_no_generate(value: str, augmented: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USE_LADE", value)
    with pytest.warns(EnvironmentWarning, match=f"USE_LADE .*got {value!r}; taken as on"):
        assert looks_ahead(tiny_model(LLAMA))
    assert looks_ahead(tiny_model(LLAMA))  # said once: a second warning would be an error


def test_a_wrong_value_means_nothing_without_lade(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USE_LADE", "tru")
    lade.restore_all()
    assert not looks_ahead(tiny_model(LLAMA))


@pytest.mark.parametrize("name", ["USE_LADE", "COLOR_PRINT"])
def test_the_chat_refuses_a_wrong_value_before_a_model_is_loaded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "load_chatbot", lambda *_, **__: pytest.fail("a model was loaded"))
    result = CliRunner().invoke(chat.command, [], env={name: "tru"})
    assert result.exit_code == 2
    assert f"{name} in the environment must be" in result.stderr
    assert "'tru'" in result.stderr


@pytest.mark.parametrize("value", ["true", "ON", "yes"])
def test_the_chat_takes_the_usual_spellings(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    class StopError(Exception):
        pass

    def load(model: str, model_type: str, settings: ChatSettings, **_: object) -> None:
        asked.extend((settings.color, not settings.plain))
        raise StopError

    monkeypatch.setattr(chat, "load_chatbot", load)
    result = CliRunner().invoke(chat.command, [], env={"USE_LADE": value, "COLOR_PRINT": value})
    assert isinstance(result.exception, StopError)
    assert asked == [True, True]
