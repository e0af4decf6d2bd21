"""The likelihood of a draft model's own texts under the target, and the cost of both: the single-draft report.

Knows models and clocks; does not know the terminal.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

import lade
from lade.applications.bench.memory import peak, reset_peak
from lade.measure.likelihood import mean_log_likelihood

Write = Callable[[Tensor], Tensor]
"""[1, prompt] token ids to [1, prompt + new]."""


@dataclass(frozen=True)
class Continuation:
    """One continuation of one prompt.

    Attributes:
        way: "draft", "target" or "speculative".
        log_likelihood: mean over the new tokens under the target, in nats; `None` without new tokens.
        seconds: latency of the call.
        peak_bytes: peak memory of the call: resident on a CPU, with both models loaded; allocated on CUDA.
    """

    way: str
    prompt_id: str | int
    log_likelihood: float | None
    new_tokens: int
    seconds: float
    peak_bytes: int


@dataclass(frozen=True)
class WaySummary:
    """One way over all prompts: the mean over all new tokens, the mean latency, all tokens over all seconds."""

    way: str
    prompts: int
    new_tokens: int
    log_likelihood: float
    latency: float
    tokens_per_second: float
    peak_bytes: int


def ways(
    target: PreTrainedModel, draft: PreTrainedModel, tokens: int, arguments: Mapping[str, Any]
) -> dict[str, Write]:
    """The draft alone, the target alone, and speculative decoding with both."""
    method = lade.DraftModel(draft, tokens=tokens)
    method.check(target)
    return {
        "draft": lambda ids: draft.generate(ids.to(draft.device), **arguments).to(target.device),
        "target": lambda ids: target.generate(ids, **arguments),
        "speculative": lambda ids: lade.generate(target, ids, method=method, **arguments),
    }


def compare(
    target: PreTrainedModel,
    prompts: Sequence[tuple[str | int, Tensor]],
    ways: Mapping[str, Write],
    seed: int,
    progress: Callable[[int, int], object],
    now: Callable[[], float] = time.perf_counter,
) -> list[Continuation]:
    """Run every way on every prompt, in turn, after a warm-up of each on the first prompt."""
    for write in ways.values():
        write(prompts[0][1])
    runs: list[Continuation] = []
    for name, ids in prompts:
        for way, write in ways.items():
            torch.manual_seed(seed)
            runs.append(_run(target, way, name, ids, write, now))
            progress(len(runs), len(prompts) * len(ways))
    return runs


def _run(
    target: PreTrainedModel, way: str, name: str | int, ids: Tensor, write: Write, now: Callable[[], float]
) -> Continuation:
    reset_peak(target.device)
    began = now()
    text = write(ids)
    if target.device.type == "cuda":
        torch.cuda.synchronize(target.device)
    seconds = now() - began
    held, new = peak(target.device), text.shape[1] - ids.shape[1]
    likelihood = mean_log_likelihood(target, ids[0], text[0, ids.shape[1] :]) if new else None
    return Continuation(way, name, likelihood, new, seconds, held)


def summaries(runs: Sequence[Continuation]) -> list[WaySummary]:
    """One per way, in the order of the runs."""
    return [_summary(way, [run for run in runs if run.way == way]) for way in dict.fromkeys(run.way for run in runs)]


def _summary(way: str, runs: Sequence[Continuation]) -> WaySummary:
    tokens, seconds = sum(run.new_tokens for run in runs), sum(run.seconds for run in runs)
    total = sum(run.new_tokens * run.log_likelihood for run in runs if run.log_likelihood is not None)
    return WaySummary(
        way=way,
        prompts=len(runs),
        new_tokens=tokens,
        log_likelihood=total / tokens if tokens else float("nan"),
        latency=seconds / len(runs),
        tokens_per_second=tokens / seconds,
        peak_bytes=max(run.peak_bytes for run in runs),
    )


def report(runs: Sequence[Continuation], about: Mapping[str, Any]) -> dict[str, Any]:
    """Ready for JSON."""
    return {
        "about": dict(about),
        "ways": [asdict(way) for way in summaries(runs)],
        "runs": [asdict(run) for run in runs],
    }
