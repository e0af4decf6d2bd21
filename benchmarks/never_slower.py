"""The law "never slower", measured: random weights, sampled, so that drafts have no value.

Each workload builds a model from a shape. Every prompt, of random tokens, is decoded plainly and with lade in turn,
with the same seed. Pooled over all prompts, plain decoding's time over lade's must be at least 0.98, in wall time and
in CPU time. Needs no data and no network: `python benchmarks/never_slower.py`.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import click
import torch
from printing import Report
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

import lade
from lade.applications.bench.machine import available_cores, describe
from lade.applications.widen import SHAPES
from lade.models.pretrained.sizes import SIZES

LAW = 0.98
PROMPT, WARMING = 64, 16  # tokens of a prompt; new tokens of the warm-up
POSITIONS = 2048


@dataclass(frozen=True)
class Workload:
    """One model and temperature."""

    shape: str
    vocabulary: int
    temperature: float

    @property
    def name(self) -> str:
        return f"{self.shape}-{self.vocabulary}-{self.temperature:g}"


MODELS = (("130M", 32_000), ("code", 32_000), ("code", 512))
SETTINGS = {each.name: each for each in (Workload(*model, heat) for model in MODELS for heat in (1.0, 1.5))}


@dataclass(frozen=True)
class Pair:
    """One prompt, decoded both ways: wall and CPU seconds."""

    plain_wall: float
    plain_cpu: float
    lade_wall: float
    lade_cpu: float
    identical: bool
    tokens_per_step: float
    looked: float  # share of steps that search for drafts


@dataclass(frozen=True)
class Measurement:
    """One workload: plain decoding's time over lade's."""

    setting: str
    prompts: int
    new_tokens: int
    pooled_wall: float
    pooled_cpu: float
    median_wall: float
    median_cpu: float
    identical: int
    tokens_per_step: float
    looked: float
    plain_ms_per_token: float

    @property
    def holds(self) -> bool:
        return min(self.pooled_wall, self.pooled_cpu) >= LAW

    def __str__(self) -> str:
        return (
            f"{self.setting:15} wall {self.pooled_wall:.3f} (median {self.median_wall:.3f})  "
            f"processor {self.pooled_cpu:.3f} (median {self.median_cpu:.3f})  "
            f"identical {self.identical}/{self.prompts}  S {self.tokens_per_step:.2f}  looked {self.looked:.0%}  "
            f"plain {self.plain_ms_per_token:.1f} ms/token  {'holds' if self.holds else 'BROKEN'}"
        )


def model_of(setting: Workload, dtype: torch.dtype, seed: int) -> PreTrainedModel:
    """A model with random weights from the seed, without EOS."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        **_sizes(setting.shape),
        vocab_size=setting.vocabulary,
        max_position_embeddings=POSITIONS,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).to(dtype).eval()


def _sizes(shape: str) -> dict[str, Any]:
    """Fields of the configuration."""
    if shape in SHAPES:
        fields = {name: size for name, size in SHAPES[shape].items() if name not in ("num_layers", "vocab_size")}
        return fields | {"num_hidden_layers": SHAPES[shape]["num_layers"]}
    size = SIZES["target"]
    return {
        "hidden_size": size.hidden,
        "intermediate_size": size.ffn,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads,
        "tie_word_embeddings": True,
    }


def decode(
    model: PreTrainedModel, ids: torch.Tensor, seed: int, new_tokens: int, temperature: float, drafts: bool
) -> tuple[torch.Tensor, float, float]:
    """The text, its wall seconds and its CPU seconds."""
    torch.manual_seed(seed)
    with lade.lookahead(model) if drafts else nullcontext():
        wall, cpu = time.perf_counter(), time.process_time()
        text = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new_tokens,
            do_sample=True,
            temperature=temperature,
            top_k=0,
        )
        return text, time.perf_counter() - wall, time.process_time() - cpu


def pair(model: PreTrainedModel, setting: Workload, number: int, seed: int, new_tokens: int) -> Pair:
    """Both ways on one prompt; the order alternates from prompt to prompt."""
    generator = torch.Generator().manual_seed(seed + number)
    ids = torch.randint(setting.vocabulary, (1, PROMPT), generator=generator)
    took = {
        drafts: decode(model, ids, seed + number, new_tokens, setting.temperature, drafts)
        for drafts in ((False, True) if number % 2 else (True, False))
    }
    stats = lade.log_history()[-1]
    if stats.fallback is not None:
        raise click.ClickException(f"lade decoded plainly: {stats.fallback}")
    rested = stats.decisions.get("drafts not looked for", 0)
    identical = torch.equal(took[False][0], took[True][0])
    return Pair(*took[False][1:], *took[True][1:], identical, stats.tokens_per_step, 1 - rested / stats.steps)


def measure(setting: Workload, dtype: torch.dtype, prompts: int, new_tokens: int, seed: int) -> Measurement:
    model = model_of(setting, dtype, seed)
    pair(model, setting, prompts, seed, WARMING)  # the self-probe, allocators, caches
    pairs = [pair(model, setting, number, seed, new_tokens) for number in range(prompts)]
    return Measurement(
        setting=setting.name,
        prompts=prompts,
        new_tokens=new_tokens,
        pooled_wall=sum(each.plain_wall for each in pairs) / sum(each.lade_wall for each in pairs),
        pooled_cpu=sum(each.plain_cpu for each in pairs) / sum(each.lade_cpu for each in pairs),
        median_wall=median(each.plain_wall / each.lade_wall for each in pairs),
        median_cpu=median(each.plain_cpu / each.lade_cpu for each in pairs),
        identical=sum(each.identical for each in pairs),
        tokens_per_step=sum(each.tokens_per_step for each in pairs) / prompts,
        looked=sum(each.looked for each in pairs) / prompts,
        plain_ms_per_token=1000 * sum(each.plain_wall for each in pairs) / (prompts * new_tokens),
    )


def _named(ctx: click.Context, param: click.Parameter, value: str) -> list[Workload]:
    names = value.split(",")
    unknown = sorted(set(names) - set(SETTINGS))
    if unknown:
        raise click.BadParameter(f"must be of {', '.join(SETTINGS)}, got {', '.join(map(repr, unknown))}")
    return [SETTINGS[name] for name in names]


@click.command()
@click.option("--settings", default=",".join(SETTINGS), show_default=True, callback=_named, help="Separated by commas.")
@click.option("--prompts", default=24, show_default=True, type=click.IntRange(min=1))
@click.option("--new-tokens", default=128, show_default=True, type=click.IntRange(min=2, max=POSITIONS - PROMPT))
@click.option("--dtype", default="bfloat16", show_default=True, type=click.Choice(("bfloat16", "float32")))
@click.option("--threads", default=available_cores(), type=click.IntRange(min=1), help="[default: all cores]")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
def main(
    settings: list[Workload], prompts: int, new_tokens: int, dtype: str, threads: int, seed: int, as_json: bool
) -> None:
    """Measure plain decoding's time over lade's where drafts have no value; exit status 1 below 0.98."""
    torch.set_num_threads(threads)
    report, outcomes = Report(describe(torch.device("cpu")), as_json), []
    for setting in settings:
        outcomes.append(measure(setting, getattr(torch, dtype), prompts, new_tokens, seed))
        report.line(str(outcomes[-1]))
    settled = [asdict(each) | {"holds": each.holds} for each in outcomes]
    report.end(new_tokens=new_tokens, dtype=dtype, seed=seed, law=LAW, settings=settled)
    if not all(each.holds for each in outcomes):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
