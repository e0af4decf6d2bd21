"""Measures a trained model, alone and with a draft, on held-out text and evaluation prompts; writes figures as JSON.

    python -m lade.models.pretrained.measure runs/target/model --draft runs/draft/model --corpus runs/corpus \\
        --data ../shared/data --out runs/target.json
"""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lade.models.load import load
from lade.models.pretrained.documents import KINDS
from lade.models.pretrained.exercises import json_lines
from lade.models.pretrained.figures import bits_per_byte, greedy

FOLDER = click.Path(path_type=Path, file_okay=False, exists=True)
SHAPE = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
SAMPLES = 2  # outputs kept per set of prompts


def human_eval(data: Path) -> list[str]:
    with gzip.open(data / "human_eval" / "HumanEval.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line)["prompt"] for line in lines]


def gsm8k_test(data: Path) -> list[str]:
    return [f"Question: {row['question']}\nAnswer:" for row in json_lines(data / "gsm8k" / "test.jsonl")]


PROMPTS: dict[str, Callable[[Path], list[str]]] = {"HumanEval": human_eval, "GSM8K test": gsm8k_test}


@click.command()
@click.argument("model", type=FOLDER)
@click.option("--draft", type=FOLDER, help="Folder of a draft model with the same tokenizer.")
@click.option("--corpus", type=FOLDER, required=True, help="Folder that the corpus command wrote.")
@click.option("--data", type=FOLDER, required=True, help="Folder with human_eval/ and gsm8k/.")
@click.option("--n", type=click.IntRange(min=1), default=20, show_default=True, help="Prompts of each set.")
@click.option(
    "--texts", type=click.IntRange(min=1), default=100, show_default=True, help="Held-out texts of each kind."
)
@click.option("--new-tokens", type=click.IntRange(min=1), default=128, show_default=True)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="JSON file to write.")
def main(
    model: Path, draft: Path | None, corpus: Path, data: Path, n: int, texts: int, new_tokens: int, out: Path
) -> None:
    """Bits per byte, repeated 4-grams, and tokens per forward with the draft and with lookahead."""
    try:
        held_out = json_lines(corpus / "held_out.jsonl")
        prompts = {name: read(data)[:n] for name, read in PROMPTS.items()}
        network, tokenizer = load(model, dtype="float32")
        small = load(draft, dtype="float32")[0] if draft else None
    except (OSError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    found: dict[str, Any] = {"config": shape(network), "bits_per_byte": {}, "prompts": {}}
    for kind in KINDS:
        chosen = [row["text"] for row in held_out if row["kind"] == kind][:texts]
        found["bits_per_byte"][kind] = bits_per_byte(network, tokenizer, chosen)
    for name, own in prompts.items():
        found["prompts"][name] = on_prompts(network, tokenizer, own, new_tokens, small)
    out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    click.echo(json.dumps({name: value for name, value in found.items() if name != "prompts"}))
    for name, figures in found["prompts"].items():
        click.echo(f"{name}: {json.dumps({key: value for key, value in figures.items() if key != 'samples'})}")


def shape(model: PreTrainedModel) -> dict[str, int]:
    return {name: getattr(model.config, name) for name in SHAPE}


def on_prompts(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: list[str],
    new_tokens: int,
    draft: PreTrainedModel | None,
) -> dict[str, Any]:
    with torch.inference_mode():
        outputs = greedy(model, tokenizer, prompts, new_tokens=new_tokens, draft=draft)
    samples = [
        {"prompt": prompt, "output": tokenizer.decode(tokens, skip_special_tokens=True)}
        for prompt, tokens in list(zip(prompts, outputs.new_tokens, strict=True))[:SAMPLES]
    ]
    return outputs.figures() | {"samples": samples}


if __name__ == "__main__":
    main()
