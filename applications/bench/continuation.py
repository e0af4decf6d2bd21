"""What an interrupted run left: whole trials are kept, the rest is run again. Knows no model."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from lade.applications.bench.records import MOST, Record, as_line, read_record
from lade.applications.bench.trial import Trial
from lade.files.atomic import put_in_place
from lade.files.regularfile import AbsentFileError, naming, read_bytes

Key = tuple[str, str, str | int, int, int, float, int, int | None]


def keys_of(trial: Trial, methods: Iterable[str]) -> set[Key]:
    """A key for each record that a trial gives."""
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


def key_of(record: Record) -> Key:
    return (
        record.method, record.task, record.prompt_id, record.turn, record.repeat, record.temperature, record.batch,
        record.context,
    )  # fmt: skip


def left_to_run(path: Path, trials: Sequence[Trial], methods: Mapping[int, Sequence[str]]) -> list[Trial]:
    """The trials that a results file lacks. Records of trials that were not finished are taken out of it.

    Args:
        methods: batch -> labels of the contenders that decode it.

    Raises:
        ValueError: a line that is no record, or a record of no trial; names the file and the line.
    """
    try:
        records = _whole_lines(path)
    except AbsentFileError:
        return list(trials)
    there = {key_of(record) for record in records}
    expected = [keys_of(trial, methods[trial.options.batch]) for trial in trials]
    stray = there - set().union(*expected)
    if stray:
        number = next(number for number, record in enumerate(records, 1) if key_of(record) in stray)
        raise ValueError(f"{path}: record {number} is of none of this run's trials: {key_of(records[number - 1])}")
    done = set().union(*(keys for keys in expected if keys <= there))
    put_in_place(path, "".join(as_line(record) for record in records if key_of(record) in done).encode())
    return [trial for trial, keys in zip(trials, expected, strict=True) if not keys <= there]


def _whole_lines(path: Path) -> list[Record]:
    """Without a last line that the interrupt cut short."""
    with naming(path):
        lines = read_bytes(path, MOST).decode(errors="replace").split("\n")[:-1]
    return [read_record(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()]
