"""`lade widen`: a small trained LLaMA at the size of a large one, for benchmarks at that size.

Holds the named shapes, the files and the timing; `lade.models.widen` moves the weights and checks them.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

import click
from safetensors import SafetensorError

from lade.applications.exits import Command, failing, usage
from lade.applications.options import MODEL, load_model, machine_options
from lade.applications.outputs import make_folder
from lade.models.load import model_source

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerBase

# Parameters, embeddings not tied: 130M 134,105,856; 300M 317,244,416; 1B 1,100,048,384 (the shape of TinyLlama);
# 7B 6,738,415,616 (the shape of LLaMA-7B: 13.5 GB in bfloat16).
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
    "7B": {
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "head_dim": 128,
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
CONTEXT, WIDTHS, TIMES = 64, (1, 16, 64), 5  # tokens before a timed forward, tokens in it, forwards of each


def size_options(function: Callable[..., None]) -> Callable[..., None]:
    for option, argument in reversed(OPTIONS.items()):  # decorators apply from the last to the first
        help_text = f"{argument}.  [default: the shape's, else the model's]"
        function = click.option(option, argument, type=click.IntRange(min=1), help=help_text)(function)
    return function


@click.command("widen", cls=Command)
@click.argument("model", callback=MODEL)
@click.argument("out", type=click.Path(path_type=Path), required=False)
@click.option("--shape", type=click.Choice(list(SHAPES)), help="A named set of sizes.")
@size_options
@machine_options
def command(
    model: str,
    out: Path | None,
    shape: str | None,
    dtype: str | None,
    device: str,
    threads: int,
    **given: int | None,
) -> None:
    """Widen MODEL, a trained LLaMA, to a larger shape: the same text at a higher cost. The logits are checked.

    OUT is the folder for the new model; without OUT the model is built in memory and its forwards are timed.
    """
    import torch

    from lade.models.widen import logit_difference, widen

    if out is not None:
        prepare(out)
    torch.set_num_threads(threads)
    original, tokenizer = load_model(model, dtype=dtype, device=device)
    try:
        wide = widen(original, **sizes_for(shape, given))
    except ValueError as error:
        raise click.UsageError(named(str(error))) from error
    try:
        label = label_of(model, wide, logit_difference(original, wide))
    except ValueError as error:
        raise click.ClickException(f"{error}; nothing is written") from error
    click.echo(label, nl=False)
    if out is None:
        click.echo(forward_times(wide))
    else:
        write(wide, tokenizer, out, label + source_of(Path(model_source(model))))


def prepare(out: Path) -> None:
    """Make the folder; an error where it cannot be made or is not empty."""
    with usage():
        make_folder("OUT", out)
        if any(out.iterdir()):
            raise ValueError(f"OUT must be a new or empty folder, got {out}")


def named(error: str) -> str:
    """The error with the option it is about, if any."""
    prefixes = {name: (f"{size}=", f"{size} ") for name, size in OPTIONS.items()}
    return next((f"{name}: {error}" for name, prefix in prefixes.items() if error.startswith(prefix)), error)


def sizes_for(shape: str | None, given: dict[str, int | None]) -> dict[str, int]:
    """The arguments of `widen`: the given sizes, then the shape's."""
    named = SHAPES[shape] if shape else {}
    return named | {name: size for name, size in given.items() if size is not None}


def forward_times(model: LlamaForCausalLM) -> str:
    """The median time of a forward, for several numbers of tokens."""
    import torch

    def zeros(length: int) -> torch.Tensor:
        return torch.zeros(1, length, dtype=torch.long, device=model.device)

    def wait() -> None:
        if model.device.type == "cuda":
            torch.cuda.synchronize(model.device)

    with torch.no_grad():
        found, context = [], model(zeros(CONTEXT), use_cache=True).past_key_values
        for width in WIDTHS:
            seconds = []
            for _ in range(TIMES):
                cache = copy.deepcopy(context)
                wait()
                start = perf_counter()
                model(zeros(width), past_key_values=cache, use_cache=True)
                wait()
                seconds.append(perf_counter() - start)
            found.append(f"{width} tokens {1000 * median(seconds):.1f} ms")
    return f"a forward after {CONTEXT} tokens: {', '.join(found)} ({torch.get_num_threads()} threads)"


def write(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, out: Path, note: str) -> None:
    with failing(OSError, SafetensorError), whole_or_empty(out):
        model.save_pretrained(out)
        tokenizer.save_pretrained(out)
        (out / "SOURCE.txt").write_text(note)
    click.echo(f"written to {out}")


@contextmanager
def whole_or_empty(folder: Path) -> Iterator[None]:
    """An error inside leaves nothing in a folder that was empty."""
    try:
        yield
    except BaseException:
        for each in folder.iterdir():
            shutil.rmtree(each) if each.is_dir() else each.unlink()
        raise


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
    """The small model's own note: its licence also covers the widened weights."""
    note = next((model / name for name in ("SOURCE.txt", "README.md") if (model / name).is_file()), None)
    return f"\nThe small model's own note:\n{note.read_text()}" if note else ""
