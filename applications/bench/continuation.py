"""Continuing an interrupted run: complete trials are kept, the others run again. Knows no model."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from lade.applications.bench.records import MAX_BYTES, Record, as_line, read_record
from lade.applications.bench.trial import Trial
from lade.files.atomic import put_in_place
from lade.files.regularfile import AbsentFileError, naming, read_bytes

RecordKey = tuple[str, str, str | int, int, int, float, int, int | None]


def keys_of(trial: Trial, methods: Iterable[str]) -> set[RecordKey]:
    """A key for each record of a trial."""
    options = trial.options
    return {
        (
            method,
            trial.task.name,
            row.prompt.id,
            turn,
            trial.repeat,
            options.temperature,
            options.batch,
            options.context,
        )
        for method in methods
        for row in trial.rows
        for turn in range(row.turns)
    }


def key_of(record: Record) -> RecordKey:
    return (
        record.method, record.task, record.prompt_id, record.turn, record.repeat, record.temperature, record.batch,
        record.context,
    )  # fmt: skip


def left_to_run(path: Path, trials: Sequence[Trial], methods: Mapping[int, Sequence[str]]) -> list[Trial]:
    """The trials missing in a results file. Records of incomplete trials are removed from it.

    Args:
        methods: batch -> labels of the contenders that decode it.

    Raises:
        ValueError: an invalid line, or a record of no trial; names the file and the line.
    """
    try:
        records = _whole_lines(path)
    except AbsentFileError:
        return list(trials)
    there = {key_of(record) for record in records}
    expected = [keys_of(trial, methods[trial.options.batch]) for trial in trials]
    stray = there - set().union(*expected)
    if stray:
        number, key = next((number, key) for number, key in enumerate(map(key_of, records), 1) if key in stray)
        raise ValueError(f"{path}: record {number} must be of one of this run's trials, got {key}")
    done = set().union(*(keys for keys in expected if keys <= there))
    put_in_place(path, "".join(as_line(record) for record in records if key_of(record) in done).encode())
    return [trial for trial, keys in zip(trials, expected, strict=True) if not keys <= there]


def _whole_lines(path: Path) -> list[Record]:
    """All records except an incomplete last line."""
    with naming(path):
        lines = read_bytes(path, MAX_BYTES).decode(errors="replace").split("\n")[:-1]
    return [read_record(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()]
