"""What commands print: tables whole where nobody's terminal bounds them, and JSON alone on stdout."""

import json

import pytest
from rich.table import Table

from lade.applications.output import PIPED_WIDTH, show


def wide() -> Table:
    table = Table(title="wide")
    for column in range(8):
        table.add_column(f"column {column}", overflow="fold")
    table.add_row(*("x" * 40 for _ in range(8)))
    return table


def test_a_piped_table_is_as_wide_as_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    show(wide(), "and a line", found={"a": 1}, as_json=False)
    printed = capsys.readouterr()
    assert printed.out.splitlines()[-1] == "and a line"
    assert any(line.count("x" * 40) == 8 for line in printed.out.splitlines())
    assert printed.err == ""
    narrow = Table("one", title="narrow")
    show(narrow, found={}, as_json=False)
    assert all(len(line) <= PIPED_WIDTH for line in capsys.readouterr().out.splitlines())


def test_json_stands_alone_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    show(wide(), "and a line", found={"a": ["ä", None]}, as_json=True)
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"a": ["ä", None]}
    assert "and a line" in printed.err
    assert "wide" in printed.err
