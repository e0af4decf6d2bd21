"""Calls that several processes share, for each number of them: torchrun starts this file as a module, with a job.

`measure` starts them; rank 0 writes what it measured.
"""

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch

import lade
from lade.applications.bench.contenders import parsed
from lade.applications.bench.methods import METHODS, MethodOptions, joined, paper
from lade.config.settings import FAMILIES
from lade.models import load

MODES = {"auto": joined(*FAMILIES), "lookahead": paper}  # methods that processes share


@dataclass(frozen=True)
class WorkersJob:
    """One measurement."""

    model: str
    label: str  # a method as `--methods` writes it
    options: dict[str, Any]  # of MethodOptions
    workers: int
    prompts: list[list[list[int]]]  # token ids, left-padded, batch by batch
    pad: int
    arguments: dict[str, Any]  # of generate
    threads: int  # of each process
    seed: int
    loading: dict[str, Any]  # dtype, device, attn_implementation, quant


@dataclass(frozen=True)
class WorkersResult:
    """What a number of processes needed for all prompts."""

    method: str
    workers: int
    new_tokens: int
    steps: int
    nodes_per_rank: float  # of a step, on the rank with the most; median over calls
    seconds: float  # of all calls on rank 0
    texts: list[list[list[int]]]

    @property
    def tokens_per_step(self) -> float:
        return self.new_tokens / self.steps if self.steps else 0.0


def numbers(workers: int) -> list[int]:
    """1, 2, 4, ... and the number itself."""
    return [*(1 << power for power in range(workers.bit_length()) if 1 << power < workers), workers]


def measure(job: WorkersJob) -> WorkersResult:
    """Run the job in processes of its own. ChildProcessError with the reason if one fails."""
    with TemporaryDirectory(prefix="lade-workers-") as folder:
        given, result = Path(folder, "job.json"), Path(folder, "result.json")
        given.write_text(json.dumps(asdict(job)))
        runner = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={job.workers}"]
        command = [*runner, f"--log-dir={folder}", "-m", __name__, str(given), str(result)]
        status, errors = finished(command, os.environ | {"OMP_NUM_THREADS": "1"})
        if status or not result.exists():
            lines = [line for line in errors.splitlines() if "Error" in line] or ["no message"]
            raise ChildProcessError(f"{job.workers} processes failed with status {status}: {lines[0].strip()}")
        return WorkersResult(**json.loads(result.read_text()))


def finished(command: list[str], environment: dict[str, str]) -> tuple[int, str]:
    """The status and the errors of a command; where this process is interrupted, the command ends its own processes."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, env=environment, **quiet) as process:  # type: ignore[call-overload]
        try:
            _, errors = process.communicate()
        except BaseException:
            process.terminate()  # `subprocess.run` would kill it, and leave those that it started
            process.communicate()
            raise
        return process.returncode, errors


def run_job(job: WorkersJob) -> WorkersResult:
    """This rank's part."""
    from lade.applications.workers import join_run

    join_run()
    torch.set_num_threads(job.threads)
    model, _ = load(job.model, **job.loading)
    method, options = parsed(job.label, MethodOptions(**job.options), METHODS)
    config = MODES[method.name](options)
    adapt = options.adapt and model.device.type != "cpu"  # ranks on one CPU take each other's time
    config = replace(config, workers=job.workers, adapt=adapt)
    if options.warm:
        lade.warm_up(model)
    nodes, steps, new_tokens, seconds, texts = [], 0, 0, 0.0, []
    for number, rows in enumerate([job.prompts[0], *job.prompts]):  # the first one is the warm-up
        began = time.perf_counter()
        text, stats = _call(model, config, rows, job)
        if number:
            seconds += time.perf_counter() - began
            nodes.append(_most(stats.mean_forward_tokens, job.workers))
            steps, new_tokens = steps + stats.steps, new_tokens + stats.new_tokens
            texts.append(text)
    return WorkersResult(job.label, job.workers, new_tokens, steps, median(nodes), seconds, texts)


def _call(
    model: Any, config: lade.LookaheadConfig, rows: list[list[int]], job: WorkersJob
) -> tuple[list[list[int]], lade.GenerationStats]:
    torch.manual_seed(job.seed)
    ids = torch.tensor(rows, device=model.device)
    mask = (ids != job.pad).cumsum(-1).clamp(max=1)
    found = lade.generate(model, ids, attention_mask=mask, config=config, **job.arguments)
    stats = lade.last_stats()
    assert stats is not None
    return found[:, ids.shape[1] :].tolist(), stats


def _most(value: float, workers: int) -> float:
    """The largest of all ranks' values."""
    if workers == 1:
        return value
    found: list[Any] = [None] * workers
    torch.distributed.all_gather_object(found, value)
    return max(found)


if __name__ == "__main__":
    done = run_job(WorkersJob(**json.loads(Path(sys.argv[1]).read_text())))
    if os.environ["RANK"] == "0":
        Path(sys.argv[2]).write_text(json.dumps(asdict(done)))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
