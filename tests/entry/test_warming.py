"""`lade.warm_up`: what it refuses, what it says while it waits for the compiler. Tables are in tests/memory/warm."""

import copy
from pathlib import Path
from typing import Any

import pytest
from families import BY_NAME
from tiny import own_llama, tiny_model
from unbranchable import UNBRANCHABLE

import lade
from lade.drafters import compiling

REFUSED = [kind for kind in UNBRANCHABLE if kind.name in ("mamba", "bloom")]


@pytest.mark.parametrize(("running", "compiled"), [(True, False), (True, True), (False, False)])
def test_the_log_says_that_the_loops_are_compiled(
    running: bool, compiled: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With a terminal or without one: a job in the background waits as long."""

    told = "lade: compiling the loops that draft, once on this machine, which takes minutes"
    expected = [told] if running and not compiled else []

    def table(*_: Any, **__: Any) -> str:
        assert caplog.messages == expected  # the table takes minutes, too
        return "the table"

    monkeypatch.setattr("lade.memory.warm.warming.warm_up", table)
    for name in ("begin", "wait"):
        monkeypatch.setattr(compiling, name, lambda: None)
    monkeypatch.setattr(compiling, "running", lambda: running)
    monkeypatch.setattr(compiling, "is_done", lambda folder: compiled)  # then it is loaded, which takes seconds
    assert lade.warm_up(tiny_model(BY_NAME["llama"], "sdpa")) == "the table"
    assert caplog.messages == expected


@pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: kind.name)
def test_a_model_that_decodes_no_trees_gets_no_table(kind: Any, table_folder: Path) -> None:
    with pytest.raises(ValueError, match=f"(?i)model must be one that decodes draft trees .*{kind.reason}") as caught:
        lade.warm_up(tiny_model(kind))
    assert "\n" not in str(caught.value)
    assert not table_folder.exists()


@pytest.mark.usefixtures("table_folder", "short_texts")
def test_what_one_call_may_change_refuses_no_table() -> None:
    model = own_llama().train()
    model.generation_config.update(num_beams=4, use_cache=False, output_attentions=True)
    before = copy.deepcopy(model.generation_config)
    assert lade.warm_up(model, top=2).complete
    assert model.training
    assert model.generation_config == before
