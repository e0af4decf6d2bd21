"""The progress bar of warm tables: on a terminal's stderr alone."""

import copy

import pytest
from families import BY_NAME
from tiny import tiny_model

from lade.memory.warm.progress import progress_bar
from lade.memory.warm.warming import warm_up


def test_a_terminal_shows_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress_bar("of this") as told:
        told(1, 4)
    out, err = capsys.readouterr()
    assert "of this" in err
    assert "25%" in err
    assert out == ""


@pytest.mark.usefixtures("table_folder", "short_texts")
def test_a_table_shows_it_once_and_another_callback_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    model = copy.deepcopy(tiny_model(BY_NAME["llama"]))
    warm_up(model, top=2, progress=lambda done, total: None)
    assert capsys.readouterr().err == ""
    warm_up(model, top=3)
    assert "warm table" in capsys.readouterr().err
    warm_up(model, top=3)
    assert capsys.readouterr().err == ""


def test_a_file_gets_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("of this") as told:
        told(1, 4)
    assert capsys.readouterr() == ("", "")
