"""Writes a model card from the records of the runs, the corpus and the measured figures.

    python -m lade.models.pretrained.card --name NAME --run runs/target --corpus runs/corpus \\
        --figures runs/target.json --note "What else must be told." --out NAME/README.md
"""

import json
from pathlib import Path
from statistics import mean
from typing import Any

import click

from lade.models.pretrained.documents import KINDS
from lade.models.pretrained.exercises import json_lines

FILE = click.Path(path_type=Path, dir_okay=False, exists=True)
FOLDER = click.Path(path_type=Path, file_okay=False, exists=True)
LAST = 50  # steps in the mean of the final loss


@click.command()
@click.option("--name", required=True, help="The model's.")
@click.option("--start", multiple=True, help="What the first run went on from; may be given again.")
@click.option("--run", "runs", type=FOLDER, required=True, multiple=True, help="Of the training command; in order.")
@click.option("--corpus", type=FOLDER, required=True, help="Folder that the corpus command wrote.")
@click.option("--figures", type=FILE, required=True, help="JSON that the measuring command wrote.")
@click.option("--note", multiple=True, help="A line under the limits; may be given again.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="File to write.")
def main(
    name: str,
    start: tuple[str, ...],
    runs: tuple[Path, ...],
    corpus: Path,
    figures: Path,
    note: tuple[str, ...],
    out: Path,
) -> None:
    """Write a model card."""
    found, contents = (json.loads(path.read_text()) for path in (figures, corpus / "corpus.json"))
    made = [(json.loads((run / "run.json").read_text()), json_lines(run / "log.jsonl")) for run in runs]
    parts = [
        head(name, made[-1][0]["parameters"], found["config"]),
        "## Training\n\n" + "\n".join(f"- {line}" for line in (*start, *(training(*run) for run in made))),
        losses(found["bits_per_byte"]),
        greedy_text(found["prompts"]),
        samples(found["prompts"]),
        "## Limits\n\n" + "\n".join(f"- {line}" for line in note),
        data(contents),
    ]
    out.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def head(name: str, parameters: int, shape: dict[str, int]) -> str:
    sizes = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in shape.items())
    return (
        f"# {name}\n\nA LLaMA of {parameters:,} parameters for Python functions and short answers, trained for this "
        f"project; bfloat16, Apache-2.0 ({sizes}; tied embeddings). Its tokenizer is a byte-level BPE in which every "
        f'digit is a token; token 0 opens every text and ends it. `lade.models.load("{name}")` loads it.'
    )


def training(made: dict[str, Any], log: list[dict[str, float]]) -> str:
    """One run in a line."""
    plan, steps = made["plan"], [row["loss"] for row in log if "loss" in row][-LAST:]
    held_out = [row["held_out_loss"] for row in log if "held_out_loss" in row]
    repeats = ", ".join(f"{kind} {times:g}" for kind, times in plan["repeats"].items())
    what = "KL to the target's logits and cross entropy" if plan["distils"] else "cross entropy"
    what += f" and {plan['unloop']:g} times the unlikelihood of loops in its own text" if plan["unloop"] else ""
    return (
        f"{made['steps']:,} steps of {plan['rows']} × {plan['length']} tokens, {made['tokens'] / 1e6:.1f} M tokens, in "
        f"{made['minutes']:.0f} minutes on {made['device']}: AdamW, peak learning rate {plan['learning_rate']:g}, "
        f"bfloat16 autocast; the objective is {what}. A document of a kind counts so many times: {repeats}. Objective "
        f"at the end {mean(steps):.3f} (mean of {len(steps)} steps); held-out cross entropy {held_out[0]:.3f} nats "
        f"per token at first, {held_out[-1]:.3f} at last."
    )


def losses(bits: dict[str, float]) -> str:
    cells = " | ".join(f"{bits[kind]:.3f}" for kind in KINDS)
    header = f"| {' | '.join(KINDS)} |\n|{'---|' * len(KINDS)}\n"
    return f"## Held-out text, bits per byte\n\n{header}| {cells} |"


def greedy_text(prompts: dict[str, Any]) -> str:
    """Tokens per forward, beside the share of repeated 4-grams, which raises them."""
    ways = {"lookahead_tokens_per_forward": "with lookahead"}
    if all("assisted_tokens_per_forward" in row for row in prompts.values()):
        ways["assisted_tokens_per_forward"] = "with the draft"
    rows = [
        f"| {name} | {row['prompts']} | {row['new_tokens']} | {row['repeated_4_grams']:.1%} | "
        + " | ".join(f"{row[way]:.2f}" for way in ways)
        + " |"
        for name, row in prompts.items()
    ]
    header = (
        f"| prompts | n | new tokens | repeated 4-grams | {' | '.join(ways.values())} |\n{'|---' * (4 + len(ways))}|"
    )
    return "## Greedy text, tokens per forward\n\n" + "\n".join([header, *rows])


def samples(prompts: dict[str, Any]) -> str:
    shown = [
        f"{name}:\n\n~~~text\n{sample['prompt'].strip()}\n--->\n{sample['output'].rstrip()}\n~~~"
        for name, row in prompts.items()
        for sample in row["samples"]
    ]
    return "## Samples\n\nGreedy, the first prompts of each set.\n\n" + "\n\n".join(shown)


def data(contents: dict[str, Any]) -> str:
    """Sources by licence; those with most text come first."""
    sources: dict[str, list[str]] = {}
    for row in contents["sources"]:
        sources.setdefault(row["licence"], []).append(f"{row['name']} {row['version']}".strip())
    listed = "\n".join(f"- {licence}: {'; '.join(names)}" for licence, names in sources.items())
    tokens = ", ".join(f"{name} {count:,}" for name, count in contents["tokens"].items())
    return (
        "## Data\n\nHumanEval, GSM8K's test split and MBPP's test split are not in it: a document that holds one of "
        f"their texts verbatim is left out, white space aside. Tokens: {tokens}. Sources by licence:\n\n{listed}"
    )


if __name__ == "__main__":
    main()
