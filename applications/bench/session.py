"""One session of a bench: its folder, its trials, what it spent. A run may take several; an interrupt ends one.

Knows no method, and of the report only which files it leaves.
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path

from lade.applications.bench.bench import Ready
from lade.applications.bench.continuation import left_to_run
from lade.applications.bench.ledger import Ledger
from lade.applications.bench.records import RESULTS, as_line
from lade.applications.bench.report.files import MARKDOWN, PAGE, SUMMARY
from lade.applications.bench.report.pictures import PICTURES
from lade.applications.bench.runfile import RUN, add_session, check_same, write_run
from lade.applications.bench.runner import run_trials
from lade.applications.bench.trial import Trial
from lade.memory.warm.progress import progress_bar


def make_folder(out: Path) -> None:
    """ValueError where it cannot take results."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--out {out}: cannot be made ({error.strerror})") from error
    if not os.access(out, os.W_OK):
        raise ValueError(f"--out {out}: cannot be written to")


def clear_run(out: Path, overwrite: bool) -> None:
    """Remove an earlier run and its report. ValueError where the folder holds one and it may not be replaced."""
    held = [name for name in (RESULTS, RUN, SUMMARY) if (out / name).exists()]
    if held and not overwrite:
        raise ValueError(f"--out {out}: holds {' and '.join(held)} already; give another folder or --overwrite")
    for name in (*held, MARKDOWN, PAGE, *(picture.name for picture in PICTURES)):
        (out / name).unlink(missing_ok=True)


def begin(ready: Ready, overwrite: bool) -> list[Trial]:
    """Make the folder hold this run, new or to be continued; the trials that are left of it.

    ValueError where it holds another one.
    """
    results, run, head = ready.bench.out / RESULTS, ready.bench.out / RUN, ready.head()
    if run.exists() and not overwrite:
        check_same(run, head)
        return left_to_run(results, ready.trials, ready.methods)
    clear_run(ready.bench.out, overwrite)
    write_run(run, head)
    return list(ready.trials)


def measure(ready: Ready, trials: Sequence[Trial]) -> None:
    """Run trials. The records of each are in the file when it ends; what the session spent is added to run.json."""
    ledger, start = Ledger(), time.perf_counter()
    before, total = len(ready.trials) - len(trials), len(ready.trials)
    with (ready.bench.out / RESULTS).open("a", encoding="utf-8", buffering=1) as file, progress_bar("bench") as move:
        try:
            move(before, total)
            running = run_trials(ready.model, ready.contenders, trials, ledger, ready.judge)
            for done, records in enumerate(running, before + 1):
                for record in records:
                    file.write(as_line(record))
                move(done, total)
        finally:
            add_session(ready.bench.out / RUN, ledger.summary(time.perf_counter() - start))
