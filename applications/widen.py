"""`lade widen`: writes a trained small LLaMA at the size of a big one, for benchmarks of the engine at that size.

Holds the named shapes, the files and the check against the original. How weights move is in `lade.models.widen`.
"""

from collections.abc import Callable
from pathlib import Path

import click
import torch
from transformers import LlamaForCausalLM, PreTrainedModel

from lade.models import load
from lade.models.widen import own_sizes, widen

# Parameters, embeddings not tied: 130M 134,105,856; 300M 317,244,416; 1B 1,100,048,384 (the shape of TinyLlama).
SHAPES = {
    "130M": {
        "hidden_size": 768,
        "intermediate_size": 2048,
        "num_layers": 12,
        "num_attention_heads": 12,
        "num_key_value_heads": 12,
        "head_dim": 64,
        "vocab_size": 32000,
    },
    "300M": {
        "hidden_size": 1024,
        "intermediate_size": 2048,
        "num_layers": 24,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "head_dim": 64,
        "vocab_size": 32000,
    },
    "1B": {
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_layers": 22,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "vocab_size": 32000,
    },
}
OPTIONS = {  # option: argument of `widen`
    "--hidden": "hidden_size",
    "--ffn": "intermediate_size",
    "--layers": "num_layers",
    "--heads": "num_attention_heads",
    "--kv-heads": "num_key_value_heads",
    "--head-dim": "head_dim",
    "--vocab": "vocab_size",
    "--positions": "max_position_embeddings",
}
MOST_DIFFERENCE = 1e-3  # of a logit, in float32


def size_options(function: Callable[..., None]) -> Callable[..., None]:
    for option, argument in reversed(OPTIONS.items()):  # the last one applied is listed first
        help_text = f"{argument}; else the shape's, else the model's own."
        function = click.option(option, argument, type=click.IntRange(min=1), help=help_text)(function)
    return function


@click.command("widen")
@click.argument("model")
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--shape", type=click.Choice(list(SHAPES)), help="Named sizes.")
@size_options
@click.option("--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), help="Default: the model's own.")
def command(model: str, out: Path, shape: str | None, dtype: str | None, **given: int | None) -> None:
    """Write MODEL, a trained LLaMA, widened to a bigger shape into the folder OUT: same text, bigger cost."""
    prepare(out)
    try:
        original, tokenizer = load(model, dtype=dtype)
        wide = widen(original, **sizes_for(original, shape, given))
    except (OSError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    difference = largest_difference(original, wide)
    if wide.dtype == torch.float32 and difference > MOST_DIFFERENCE:
        raise click.ClickException(f"the widened model's logits differ by {difference:.1e}, nothing was written")
    label = label_of(model, wide, difference)
    wide.save_pretrained(out)
    tokenizer.save_pretrained(out)
    (out / "SOURCE.txt").write_text(label + source_of(Path(model)))
    click.echo(f"{label}written to {out}")


def prepare(out: Path) -> None:
    """Make the folder; an error where it cannot be made or holds something."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.ClickException(f"OUT={out}: cannot be made ({error.strerror})") from error
    if any(out.iterdir()):
        raise click.ClickException(f"OUT={out}: a new or empty folder is needed")


def sizes_for(model: PreTrainedModel, shape: str | None, given: dict[str, int | None]) -> dict[str, int]:
    """The arguments of `widen`: what is given, else what the shape says, else the model's own size."""
    named = SHAPES[shape] if shape else {}
    return own_sizes(model) | named | {name: size for name, size in given.items() if size is not None}


@torch.no_grad()
def largest_difference(original: PreTrainedModel, wide: LlamaForCausalLM) -> float:
    vocab = original.config.vocab_size
    ids = torch.arange(32, device=original.device)[None] * (vocab // 32)  # [1, 32], tokens from all over the vocabulary
    return float((original(ids).logits.float() - wide(ids).logits[..., :vocab].float()).abs().max())


def label_of(source: str, wide: LlamaForCausalLM, difference: float) -> str:
    config = wide.config
    return (
        f"model: {Path(source).name} widened without changing its function: the cost of its size, the text of the\n"
        "  small one. A shape for benchmarks, to be labelled as widened wherever a figure of it is shown\n"
        f"size: {wide.num_parameters():,} parameters, {wide.dtype}; hidden {config.hidden_size}, "
        f"{config.num_hidden_layers} layers, {config.num_attention_heads} heads / {config.num_key_value_heads} KV, "
        f"head {config.head_dim}, ffn {config.intermediate_size}, vocab {config.vocab_size}, "
        f"positions {config.max_position_embeddings}\n"
        f"from: {config.lade_widened}\n"
        f"largest logit difference from the original: {difference:.1e}\n"
    )


def source_of(model: Path) -> str:
    """What the small model's own note says, for its licence holds for the widened weights too."""
    note = model / "SOURCE.txt"
    return f"\nThe small model's own note:\n{note.read_text()}" if note.is_file() else ""
