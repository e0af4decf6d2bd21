"""A command that is the program of its process: lade's warnings are lines, and signals end it tidily."""

import io
import os
import signal
import warnings
from collections.abc import Iterator

import click
import pytest

from lade.applications import exits, process
from lade.files.cachefolder import CacheWarning


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, *process.ENDING)}
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


@pytest.fixture(params=[exits.Command, exits.Group])
def program(request: pytest.FixtureRequest) -> click.Command:
    """It warns three times with --warn, twice of the same."""

    def warn(context: click.Context, parameter: click.Parameter, value: bool) -> None:
        told = (("full", CacheWarning), ("full", CacheWarning), ("old", UserWarning)) if value else ()
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            for message, kind in told:
                warnings.warn(message, kind, stacklevel=1)

    option = click.Option(["--warn"], is_flag=True, callback=warn, is_eager=True)
    found: click.Command = request.param("program", params=[option], callback=lambda **_: None)
    return found


def test_warnings_are_lines_and_told_once(
    program: click.Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of others, and those of a command that is not the program, are shown as the process shows them."""
    others: list[str] = []

    def show(message: object, *_: object) -> None:
        others.append(str(message))

    monkeypatch.setattr(warnings, "showwarning", show)
    program.main(["--warn", "--help"], standalone_mode=False)
    assert others == ["full", "full", "old"]
    assert "warning:" not in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", ["program", "--warn", "--help"])
    with pytest.raises(SystemExit):
        program.main()
    assert others[3:] == ["old"]
    assert capsys.readouterr().err == "warning: full\n"
    assert warnings.showwarning is show


def test_characters_that_the_output_cannot_write_end_no_program(
    program: click.Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", output)
    monkeypatch.setattr("sys.argv", ["program", "--warn", "--help"])
    monkeypatch.setattr(program.params[0], "callback", lambda *_: print("3 · 4"))
    with pytest.raises(SystemExit) as ended:
        program.main()
    output.flush()
    assert ended.value.code == 0
    assert b"3 ? 4\n" in output.buffer.getvalue()


def test_ctrl_c_behind_the_end_of_a_program_prints_nothing(
    program: click.Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGINT)
    program.main(["--help"], standalone_mode=False)
    assert signal.getsignal(signal.SIGINT) is before
    monkeypatch.setattr("sys.argv", ["program", "--help"])
    with pytest.raises(SystemExit):
        program.main()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL


@pytest.mark.parametrize("number", process.ENDING)
def test_a_signal_to_end_lets_a_program_tidy_up(
    number: int, program: click.Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[object] = []

    def work(*_: object) -> None:
        try:
            signal.raise_signal(number)
        finally:
            done.append("tidy")
            done.extend(signal.getsignal(each) for each in process.ENDING)

    for each in process.ENDING:
        signal.signal(each, signal.SIG_DFL)
    monkeypatch.setattr("sys.argv", ["program", "--warn"])
    monkeypatch.setattr(program.params[0], "callback", work)
    monkeypatch.setattr(os, "kill", lambda *how: done.append(how))
    with pytest.raises(SystemExit):
        program.main()
    assert done == ["tidy", *[signal.SIG_DFL] * len(process.ENDING), (os.getpid(), number)]


@pytest.mark.parametrize("number", process.ENDING)
def test_an_ignored_signal_stays_ignored(number: int, program: click.Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """As below nohup."""
    signal.signal(number, signal.SIG_IGN)
    monkeypatch.setattr("sys.argv", ["program", "--warn", "--help"])
    monkeypatch.setattr(program.params[0], "callback", lambda *_: signal.raise_signal(number))
    with pytest.raises(SystemExit) as ended:
        program.main()
    assert ended.value.code == 0
