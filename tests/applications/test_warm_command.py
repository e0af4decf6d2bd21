"""`lade warm` from the command line: what it keeps, what it says, and what it refuses."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from lade.applications.warm import command
from lade.memory.warm import warming as warm
from lade.models import load
from lade.models.shipped import STORIES

pytestmark = pytest.mark.usefixtures("one_thread", "table_folder", "short_texts")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def test_the_table_is_kept_where_generate_finds_it(table_folder: Path) -> None:
    result = run(STORIES, "--device", "cpu")
    assert result.exit_code == 0, result.output
    (path,) = table_folder.iterdir()
    table = warm.cached(load("stories260K")[0])
    assert table is not None
    assert table.tokens.shape == (512, 16)
    known = f"512 entries and {len(table.contexts.endings)} contexts"
    assert f"16 tokens after each of {known}: computed in {table.seconds:.2f} s" in result.stdout
    assert f"{path} ({path.stat().st_size:,} bytes)" in result.stdout


def test_a_second_run_computes_nothing(table_folder: Path) -> None:
    first = run(STORIES, "--top", 4)
    (path,) = table_folder.iterdir()
    written = path.stat().st_ino
    second = run(STORIES, "--top", 4)
    assert second.stdout == first.stdout.replace("computed", "found in the cache, computed")
    assert path.stat().st_ino == written
    third = run(STORIES, "--top", 8)
    assert "8 tokens after each of 512 entries and " in third.stdout
    assert "contexts: computed" in third.stdout


def test_each_dtype_has_its_own_table(table_folder: Path) -> None:
    for dtype in ("float32", "bfloat16"):
        assert "contexts: computed" in run(STORIES, "--dtype", dtype).stdout
    assert len(list(table_folder.iterdir())) == 2
    assert warm.cached(load("stories260K", dtype="bfloat16")[0]) is not None


def test_wrong_arguments_are_named_before_any_work(tmp_path: Path, table_folder: Path) -> None:
    assert "nowhere" in run(tmp_path / "nowhere").stderr
    assert "Invalid value for '--top'" in run(STORIES, "--top", 0).stderr
    assert "Invalid value for '--device'" in run(STORIES, "--device", "abacus").stderr
    assert not table_folder.exists()
    result = run(STORIES, "--top", 513)
    assert result.exit_code == 2
    assert "top must be an integer from 1 to 512" in result.stderr


def test_a_folder_that_takes_no_table_is_an_error(table_folder: Path) -> None:
    table_folder.write_text("a file where the folder should be")
    result = run(STORIES)
    assert result.exit_code == 1
    assert "the table's folder cannot be made" in result.stderr
