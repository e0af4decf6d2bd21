"""`lade warm` from the command line: what it keeps, what it says, and what it refuses."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from lade import warm
from lade.applications.warm import command
from lade.models import load
from lade.models.load import SHIPPED

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LADE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def test_the_table_is_kept_where_generate_finds_it(folder: Path) -> None:
    result = run(SHIPPED, "--device", "cpu")
    assert result.exit_code == 0, result.output
    (path,) = folder.iterdir()
    table = warm.cached(load()[0])
    assert table is not None
    assert table.tokens.shape == (512, 16)
    assert f"16 tokens after each of 512 entries: computed in {table.seconds:.2f} s" in result.stdout
    assert f"{path} ({path.stat().st_size:,} bytes)" in result.stdout


def test_a_second_run_computes_nothing(folder: Path) -> None:
    first = run(SHIPPED, "--top", 4)
    (path,) = folder.iterdir()
    written = path.stat().st_mtime_ns, path.stat().st_ino
    second = run(SHIPPED, "--top", 4)
    assert second.stdout == first.stdout.replace("computed", "already there, computed")
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == written
    assert "8 tokens after each of 512 entries: computed" in run(SHIPPED, "--top", 8).stdout


def test_each_dtype_has_its_own_table(folder: Path) -> None:
    for dtype in ("float32", "bfloat16"):
        assert "entries: computed" in run(SHIPPED, "--dtype", dtype).stdout
    assert len(list(folder.iterdir())) == 2
    assert warm.cached(load(dtype="bfloat16")[0]) is not None


def test_wrong_arguments_are_named_before_any_work(tmp_path: Path, folder: Path) -> None:
    assert "nowhere" in run(tmp_path / "nowhere").stderr
    assert "Invalid value for '--top'" in run(SHIPPED, "--top", 0).stderr
    assert "Invalid value for '--device'" in run(SHIPPED, "--device", "abacus").stderr
    assert not folder.exists()
    result = run(SHIPPED, "--top", 513)
    assert result.exit_code == 1
    assert "top=513: allowed is an integer from 1 to 512" in result.stderr


def test_a_folder_that_takes_no_table_is_an_error(folder: Path) -> None:
    folder.write_text("a file where the folder should be")
    result = run(SHIPPED)
    assert result.exit_code == 1
    assert "no folder for the table" in result.stderr
