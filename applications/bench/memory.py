"""Peak memory of one method at a given context, measured in its own process.

`measure` starts the process; it runs this file as a module, with a job as JSON in and a result as JSON out.
"""

import json
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

import lade
from lade.applications.bench.companion import load_companion
from lade.applications.bench.contenders import contenders
from lade.applications.bench.methods import MethodOptions
from lade.applications.bench.task import room_of
from lade.memory.warm import warming as warm
from lade.models import load

DEFAULT_CONTEXT = 2048  # prompt tokens, if the model has as many positions
CLEAR_PEAK = Path("/proc/self/clear_refs")  # Linux: writing 5 resets the peak to the current use


@dataclass(frozen=True)
class MemoryJob:
    """One measurement."""

    model: str
    label: str  # a method as `--methods` writes it
    options: dict[str, Any]  # of MethodOptions
    context: int | None  # prompt tokens; None: DEFAULT_CONTEXT, or as many as the model has positions for
    max_new_tokens: int
    threads: int
    seed: int
    loading: dict[str, Any]  # dtype, device, attn_implementation, quant


@dataclass(frozen=True)
class MemoryResult:
    """Bytes: resident memory of the process on a CPU, allocated memory on CUDA."""

    method: str
    context: int
    loaded: int  # after loading the model (and the draft model), before decoding
    peak: int
    new_tokens: int
    seconds: float  # of the call, without a warm-up
    fallback: str | None
    refusal: str | None = None  # why the method cannot run here; nothing is measured then

    @property
    def used(self) -> int:
        """Memory of decoding, on top of the loaded model."""
        return self.peak - self.loaded


def measure(job: MemoryJob, repeats: int) -> MemoryResult:
    """The run with the median use of `repeats` runs, because allocators vary from run to run."""
    results = [measure_once(job)]
    if results[0].refusal is None:
        results += [measure_once(job) for _ in range(repeats - 1)]
    results.sort(key=lambda result: result.used)
    return results[len(results) // 2]


def measure_once(job: MemoryJob) -> MemoryResult:
    """Run the job in its own process. ChildProcessError with the reason if it fails."""
    command = [sys.executable, "-m", __name__, json.dumps(asdict(job))]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]  # for example, killed by the system
        raise ChildProcessError(f"measuring {job.label!r} failed with status {done.returncode}: {lines[-1]}")
    return MemoryResult(**json.loads(done.stdout.splitlines()[-1]))


def run_job(job: MemoryJob) -> MemoryResult:
    torch.set_num_threads(job.threads)
    torch.manual_seed(job.seed)
    contender = next(c for c in contenders(job.label, MethodOptions(**job.options)) if c.label == job.label)
    model, tokenizer = load(job.model, **job.loading)
    if contender.method.takes_draft and (draft := contender.options.draft) is not None:
        contender = contender.beside(load_companion(draft, contender.options.draft_quant, job.loading, tokenizer))
    refusal = contender.refusal(model, 1)
    if refusal is not None:
        return MemoryResult(job.label, 0, loaded=0, peak=0, new_tokens=0, seconds=0, fallback=None, refusal=refusal)
    ids = random_prompt(model, job)
    if contender.warm:
        warm.warm_up(model)
    for weight in chain(model.parameters(), contender.draft.model.parameters() if contender.draft else ()):
        weight.sum()  # memory-mapped weights are loaded when they are read
    if contender.options.pack:
        lade.pack_weights(model)
    loaded, began = reset_peak(model.device), time.perf_counter()
    sequences = contender.decode(
        model,
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=job.max_new_tokens,
        do_sample=False,
    )
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)
    seconds = time.perf_counter() - began
    stats = lade.last_stats() if contender.method.has_stats else None
    return MemoryResult(
        method=job.label,
        context=ids.shape[1],
        loaded=loaded,
        peak=peak(model.device),
        new_tokens=sequences.shape[1] - ids.shape[1],
        seconds=seconds,
        fallback=stats.fallback if stats else None,
    )


def random_prompt(model: PreTrainedModel, job: MemoryJob) -> torch.Tensor:
    """Token ids [1, context]; the model's EOS is disabled, so that every method decodes all new tokens."""
    context = context_for(job, room_of(model, job.max_new_tokens))
    model.generation_config.eos_token_id = None
    generator = torch.Generator().manual_seed(job.seed)
    size = model.config.get_text_config().vocab_size
    return torch.randint(size, (1, context), generator=generator).to(model.device)


def context_for(job: MemoryJob, room: int | None) -> int:
    """Prompt tokens that leave room for the new ones; ValueError if the given context does not."""
    wanted = DEFAULT_CONTEXT if job.context is None else job.context
    if room is None or wanted <= room:
        return wanted
    positions = f"the model's {room + job.max_new_tokens} positions"
    if job.context is not None:
        raise ValueError(f"--context must fit {positions} with {job.max_new_tokens} new tokens, got {job.context}")
    if room < 1:
        raise ValueError(f"--max-new-tokens must be below {positions}, got {job.max_new_tokens}")
    return room


def check_peak(device: torch.device) -> None:
    """ValueError on systems that do not report a process's peak memory."""
    if device.type != "cuda" and find_spec("resource") is None:
        raise ValueError(f"--memory must be given with --device cuda on this system, got {str(device)!r}")


def reset_peak(device: torch.device) -> int:
    """Reset the peak, if the system can; returns the current use in bytes."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device)
    with suppress(OSError):  # otherwise the peak of loading counts as loaded
        CLEAR_PEAK.write_text("5")
    return peak(device)


def peak(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError as error:
        raise OSError("the host's peak memory is available on POSIX systems only") from error
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def main() -> None:
    try:
        print(json.dumps(asdict(run_job(MemoryJob(**json.loads(sys.argv[1]))))))
    except (ImportError, OSError, ValueError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
