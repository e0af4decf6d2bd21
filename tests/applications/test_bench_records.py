"""The results file's lines: written, read back, and refused by file, line and field."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from lade.applications.bench.records import Record, as_line, read_records

LEAST = {
    "method": "auto", "task": "hand", "prompt_id": "a", "prompt_tokens": 4, "new_tokens": 12, "steps": 6,
    "tokens_per_step": 2.0, "mean_forward_tokens": 8, "seconds": 2.0, "prefill_seconds": 0.1, "model_seconds": 1.5,
    "host_seconds": 0.4, "identical_to_plain": True,
}  # fmt: skip
FULL = LEAST | {
    "parting": {"index": 3, "tokens": [1, 2], "explained": True}, "accepted": {"suffix": 6},
    "context": 512, "accepted_by_depth": {1: 4, 2: 2}, "accepted_lengths": {2: 6}, "widths": {8: 6}, "score": False,
    "rows": 4, "warm_seconds": 1.5, "peak_memory_bytes": 7, "fallback": "because",
}  # fmt: skip


def test_records_come_back_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    records = [Record(**LEAST), Record(**FULL), Record(**FULL | {"prompt_id": 3, "category": "a\u2028b"})]
    path.write_text("".join(map(as_line, records)) + "\n")
    assert read_records(path) == records
    assert read_records(path)[1].accepted_by_depth == {1: 4, 2: 2}


def test_a_batch_shares_its_seconds() -> None:
    record = Record(**FULL)
    assert (record.tokens_per_second, record.share) == (6.0, 0.5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gamma": 4}, ":2: a field must be one of method, task.*, got 'gamma'"),
        ({"steps": None}, ":2: steps must be int, got None"),
        ({"steps": 2.5}, ":2: steps must be int, got 2.5"),
        ({"steps": True}, ":2: steps must be int, got True"),
        ({"method": 3}, ":2: method must be str, got 3"),
        ({"score": 1}, r":2: score must be bool \| None, got 1"),
        ({"prompt_id": 1.5}, r":2: prompt_id must be str \| int, got 1.5"),
        ({"seconds": "2"}, ":2: seconds must be float, got '2'"),
        ({"seconds": float("nan")}, r":2: is not JSON \(a number must be finite, got NaN\)"),
        ({"seconds": 0}, ":2: seconds and rows must be above 0, got 0 and 1"),
        ({"rows": 0}, ":2: seconds and rows must be above 0, got 2.0 and 0"),
        ({"tokens_per_step": {}}, ":2: tokens_per_step must be .*, got {}"),
        ({"parting": [1]}, r":2: parting must be .*, got \[1\]"),
        ({"accepted": 3}, r":2: accepted must be dict\[str, int\], got 3"),
        ({"accepted": {"suffix": 1.5}}, ":2: accepted.suffix must be int, got 1.5"),
        ({"widths": {"wide": 1}}, ":2: widths: a key must be a count, got 'wide'"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text(as_line(Record(**LEAST)) + json.dumps(LEAST | changes) + "\n")
    with pytest.raises(ValueError, match="results.jsonl" + message):
        read_records(path)


@pytest.mark.parametrize("name", sorted(LEAST))
def test_a_missing_field_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text(json.dumps({key: value for key, value in LEAST.items() if key != name}))
    with pytest.raises(ValueError, match=f":1: the field '{name}' is missing"):
        read_records(path)


def test_files_that_are_not_lines_of_objects_are_named(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with pytest.raises(ValueError, match=r"results\.jsonl: cannot be read"):
        read_records(path)
    path.write_text(as_line(Record(**LEAST)) + '{"method": "au')
    with pytest.raises(ValueError, match=r"results\.jsonl:2: is not JSON"):
        read_records(path)
    path.write_bytes(b"\xff")
    with pytest.raises(ValueError, match=r"results\.jsonl: is not UTF-8 text"):
        read_records(path)


def test_every_field_is_written() -> None:
    assert set(json.loads(as_line(Record(**LEAST)))) == set(asdict(Record(**LEAST)))
