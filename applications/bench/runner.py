"""Runs contenders in turn, prompt by prompt and repeat by repeat, and yields a record of every run.

Knows no method by name but plain decoding, the one that all others are compared with; prints and writes nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import lade
from lade.applications.bench.forwards import ForwardCounter, Forwards
from lade.applications.bench.methods import PLAIN, Contender
from lade.applications.bench.prompts import Prompt
from lade.applications.bench.records import Record
from lade.audit import parting

WARMUP_TOKENS = 16


@dataclass(frozen=True)
class RunOptions:
    """How every contender generates."""

    max_new_tokens: int = 128
    repeats: int = 1
    warmup: int = 1  # untimed calls of each contender before the first record
    seed: int = 0
    temperature: float = 0.0  # 0: greedy
    top_k: int = 0
    top_p: float = 1.0
    eos: tuple[int, ...] | None = None  # None: the model's own


@dataclass(frozen=True)
class Task:
    """Prompts that fit the model, as token ids [1, n], and how many did not fit."""

    name: str
    prompts: tuple[tuple[Prompt, Tensor], ...]
    skipped: int


@dataclass(frozen=True)
class Run:
    """What one call of one contender gave."""

    new_tokens: tuple[int, ...]
    forwards: Forwards
    stats: lade.GenerationStats | None


def make_task(
    name: str,
    prompts: Sequence[Prompt],
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    options: RunOptions,
) -> Task:
    """Tokenises. ValueError where no prompt fits the model with the new tokens, or its vocabulary lacks an EOS id."""
    config = model.config.get_text_config()
    beyond = [eos for eos in options.eos or () if eos >= config.vocab_size]
    if beyond:
        raise ValueError(f"--eos {beyond[0]}: the model's vocabulary has {config.vocab_size} entries")
    positions = getattr(config, "max_position_embeddings", None)
    encoded = [(prompt, tokenizer(prompt.text, return_tensors="pt").input_ids) for prompt in prompts]
    fitting = tuple(
        (prompt, ids.to(model.device))
        for prompt, ids in encoded
        if positions is None or ids.shape[1] + options.max_new_tokens <= positions
    )
    if not fitting:
        raise ValueError(
            f"no prompt of {name} fits: with {options.max_new_tokens} new tokens "
            f"each exceeds the model's {positions} positions"
        )
    return Task(name, fitting, len(prompts) - len(fitting))


def run_task(
    model: PreTrainedModel, contenders: Sequence[Contender], task: Task, options: RunOptions
) -> Iterator[Record]:
    """Records of all contenders, one prompt and repeat after the other; plain decoding must be among them."""
    arguments = generate_arguments(model, options)
    warm_up(model, contenders, task.prompts[0][1], arguments, options)
    trials = [(prompt, ids, repeat) for prompt, ids in task.prompts for repeat in range(options.repeats)]
    for turn, (prompt, ids, repeat) in enumerate(trials):
        first = turn % len(contenders)  # nobody always goes first
        seed = options.seed + turn
        order = [*contenders[first:], *contenders[:first]]
        runs = {contender.label: run_once(model, contender, ids, arguments, seed) for contender in order}
        for contender in contenders:
            yield Record(
                method=contender.label,
                task=task.name,
                prompt_id=prompt.id,
                repeat=repeat,
                seed=seed,
                temperature=options.temperature,
                prompt_tokens=ids.shape[1],
                parting=None if options.temperature else audit(model, ids, runs[contender.label], runs[PLAIN]),
                **measures(runs[contender.label], runs[PLAIN]),
            )


def warm_up(
    model: PreTrainedModel, contenders: Sequence[Contender], ids: Tensor, arguments: dict[str, Any], options: RunOptions
) -> None:
    short = arguments | {"max_new_tokens": min(WARMUP_TOKENS, options.max_new_tokens)}
    for contender in list(contenders) * options.warmup:
        run_once(model, contender, ids, short, options.seed)


def generate_arguments(model: PreTrainedModel, options: RunOptions) -> dict[str, Any]:
    eos = list(options.eos) if options.eos else model.generation_config.eos_token_id
    arguments = {"max_new_tokens": options.max_new_tokens, "eos_token_id": eos}
    if options.temperature == 0:
        return arguments | {"do_sample": False}
    sampling = {"temperature": options.temperature, "top_k": options.top_k, "top_p": options.top_p}
    return arguments | sampling | {"do_sample": True}


def run_once(model: PreTrainedModel, contender: Contender, ids: Tensor, arguments: dict[str, Any], seed: int) -> Run:
    torch.manual_seed(seed)
    with ForwardCounter(model, model.device) as counter:
        sequences = contender.decode(model, input_ids=ids, attention_mask=torch.ones_like(ids), **arguments)
    new_tokens = tuple(sequences[0, ids.shape[1] :].tolist())
    return Run(new_tokens, counter.result(), lade.last_stats() if contender.reports else None)


def audit(model: PreTrainedModel, ids: Tensor, run: Run, plain: Run) -> dict[str, Any] | None:
    """Where a text leaves plain decoding's, and whether rounding explains it; None where it does not."""
    one, other = (torch.cat([ids[0].cpu(), torch.tensor(text.new_tokens, dtype=torch.long)]) for text in (plain, run))
    found = parting(model, one, other, prompt_length=ids.shape[1])
    return None if found is None else asdict(found) | {"explained": found.explained}


def measures(run: Run, plain: Run) -> dict[str, Any]:
    """What a record says of one run."""
    new_tokens, forwards = len(run.new_tokens), run.forwards
    return {
        "new_tokens": new_tokens,
        "steps": forwards.steps,
        "tokens_per_step": new_tokens / forwards.steps if forwards.steps else None,
        "mean_forward_tokens": forwards.tokens / forwards.steps if forwards.steps else None,
        "seconds": forwards.seconds,
        "prefill_seconds": forwards.prefill_seconds,
        "model_seconds": forwards.model_seconds,
        "host_seconds": forwards.host_seconds,
        "identical_to_plain": run.new_tokens == plain.new_tokens,
        "accepted": run.stats.accepted if run.stats else {},
        "fallback": run.stats.fallback if run.stats else None,
    }
