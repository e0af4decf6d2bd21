"""`lade.warm_up`: what it says while it waits for the compiler. The table is in tests/memory/warm."""

from typing import Any

import pytest
from families import BY_NAME
from tiny import tiny_model

import lade
from lade.drafters import compiling


@pytest.mark.parametrize("running", [True, False])
def test_the_log_says_that_the_loops_are_compiled(
    running: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With a terminal or without one: a job in the background waits as long."""

    def table(*_: Any, **__: Any) -> str:
        return "the table"

    monkeypatch.setattr("lade.memory.warm.warming.warm_up", table)
    for name in ("begin", "wait"):
        monkeypatch.setattr(compiling, name, lambda: None)
    monkeypatch.setattr(compiling, "running", lambda: running)
    assert lade.warm_up(tiny_model(BY_NAME["llama"], "sdpa")) == "the table"
    assert (
        caplog.messages == ["lade: compiling the loops that draft, once on this machine, which takes minutes"] * running
    )
