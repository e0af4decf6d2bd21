"""What benchmarks print: lines for people, or one JSON object."""

import json

import pytest
from printing import Report

MACHINE = {"cpu": "one"}


def printed(as_json: bool) -> None:
    report = Report(MACHINE, as_json)
    report.line("first")
    report.end(rounds=2, timings=[1.5])


def test_lines_follow_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    printed(as_json=False)
    assert capsys.readouterr().out.splitlines() == [json.dumps(MACHINE), "first"]


def test_an_object_holds_the_machine_and_all_else(capsys: pytest.CaptureFixture[str]) -> None:
    printed(as_json=True)
    assert json.loads(capsys.readouterr().out) == {"machine": MACHINE, "rounds": 2, "timings": [1.5]}
