"""One session of a bench: its folder, its trials, its timings. An interrupted run takes several sessions.

Knows no method, and of the report only its files.
"""

import time
from collections.abc import Sequence
from pathlib import Path

from lade.applications.bench.bench import Ready
from lade.applications.bench.continuation import left_to_run
from lade.applications.bench.records import RESULTS, as_line
from lade.applications.bench.report.files import FILES, SUMMARY
from lade.applications.bench.report.pictures import PICTURES
from lade.applications.bench.runfile import RUN, add_session, check_same, write_run
from lade.applications.bench.runner import run_trials
from lade.applications.bench.samples import SAMPLES, chosen, write_samples
from lade.applications.bench.timings import Timings
from lade.applications.bench.trial import Trial, TrialRunner
from lade.memory.warm import warming as warm
from lade.memory.warm.progress import progress_bar


def clear_run(out: Path, overwrite: bool) -> None:
    """Remove an earlier run and its report. ValueError if there is one and `overwrite` is not set."""
    held = [name for name in (RESULTS, RUN, SUMMARY) if (out / name).exists()]
    if held and not overwrite:
        names = " and ".join(held)
        raise ValueError(f"--out must be a new folder, got {out}, which holds {names}; --overwrite replaces the run")
    for name in (*held, SAMPLES, *FILES, *(picture.name for picture in PICTURES)):
        (out / name).unlink(missing_ok=True)


def begin(ready: Ready, overwrite: bool) -> list[Trial]:
    """Start or continue the run in the folder; returns the remaining trials.

    ValueError if the folder holds another run.
    """
    results, run, head = ready.bench.out / RESULTS, ready.bench.out / RUN, ready.head()
    if run.exists() and not overwrite:
        check_same(run, head)
        return left_to_run(results, ready.trials, ready.methods)
    clear_run(ready.bench.out, overwrite)
    write_run(run, head)
    return list(ready.trials)


def measure(ready: Ready, trials: Sequence[Trial]) -> None:
    """Run trials; write their records after each, and add the session's timings to run.json at the end."""
    timings, start = Timings(), time.perf_counter()
    before, total = len(ready.trials) - len(trials), len(ready.trials)
    with (ready.bench.out / RESULTS).open("a", encoding="utf-8", buffering=1) as file, progress_bar("bench") as move:
        try:
            move(before, total)
            running = run_trials(ready.model, ready.contenders, trials, timings, ready.reference_model)
            for done, records in enumerate(running, before + 1):
                for record in records:
                    file.write(as_line(record))
                move(done, total)
        finally:
            add_session(ready.bench.out / RUN, timings.summary(time.perf_counter() - start))


def sample(ready: Ready, count: int) -> None:
    """Write the texts of every method on the first `count` prompts of every task, without timing them."""
    able = [one for one in ready.contenders if one.refusal(ready.model, 1) is None]
    if any(one.warm for one in able):
        warm.warm_up(ready.model)
    runner = TrialRunner(ready.model, able, Timings(), None)
    with progress_bar("samples") as move:
        write_samples(ready.bench.out / SAMPLES, runner, chosen(ready.trials, count), move)
