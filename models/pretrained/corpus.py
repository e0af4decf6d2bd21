"""Builds the corpus: gathers documents, removes evaluation texts, splits, and writes token files.

python -m lade.models.pretrained.corpus --data ../shared/data --out runs/corpus
"""

import json
import random
import sysconfig
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from lade.models.pretrained.documents import KINDS, SIDES, Document, distinct, is_held_out
from lade.models.pretrained.exercises import EXERCISES, exercise_documents
from lade.models.pretrained.installed import Origin, origins, source_documents
from lade.models.pretrained.tokenizer import load_tokenizer, train_tokenizer
from lade.models.pretrained.withheld import Withheld, evaluation_texts

HELD_OUT = 0.01  # of the groups
DATA = ("gsm8k/", "mbpp/", "human_eval/")  # folders of the data sets
SAMPLE = 40_000_000  # characters that the tokenizer is trained on
FOLDER = click.Path(path_type=Path, file_okay=False)
PRESENT = click.Path(path_type=Path, file_okay=False, exists=True)


def gather(found: Sequence[Origin], data: Path | None) -> list[Document]:
    """All distinct documents without those that contain an evaluation text."""
    withheld = Withheld([] if data is None else evaluation_texts(data))
    sources = (document for origin in found for document in source_documents(origin))
    documents = list(distinct(chain(exercise_documents(data, click.echo), sources)))
    kept = [document for document in documents if not withheld.is_in(document.text)]
    click.echo(
        f"{len(kept)} documents; {len(documents) - len(kept)} left out for one of {len(withheld)} evaluation texts"
    )
    return kept


def split(documents: Sequence[Document], share: float = HELD_OUT) -> dict[str, list[Document]]:
    """Training and held-out documents, shuffled with a fixed seed."""
    mixed = random.Random(0).sample(documents, len(documents))
    sides: dict[str, list[Document]] = {side: [] for side in SIDES}
    for document in mixed:
        sides[SIDES[is_held_out(document, share)]].append(document)
    return sides


def sample(documents: Sequence[Document], characters: int = SAMPLE) -> Iterator[str]:
    """Texts for the tokenizer: short kinds whole, sources until enough is seen."""
    for document in sorted(documents, key=lambda document: document.kind == "source"):
        characters -= len(document.text)
        if characters < 0:
            return
        yield document.text


def encode(tokenizer: PreTrainedTokenizerFast, documents: Sequence[Document]) -> NDArray[np.uint16]:
    """Token ids of all documents, concatenated; a BOS token precedes each."""
    parts = [np.empty(0, np.uint16)]
    for start in range(0, len(documents), 512):
        batch = documents[start : start + 512]
        prompts = _ids(tokenizer, [document.text[: document.prompt] for document in batch])
        rests = _ids(tokenizer, [document.text[document.prompt :] for document in batch])
        rows = zip(prompts, rests, strict=True)
        parts += [np.asarray([tokenizer.bos_token_id, *prompt, *rest], np.uint16) for prompt, rest in rows]
    return np.concatenate(parts)


def _ids(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> list[list[int]]:
    ids: list[list[int]] = tokenizer(texts, add_special_tokens=False, return_attention_mask=False)["input_ids"]
    return ids


def write(folder: Path, sides: dict[str, list[Document]], tokenizer: PreTrainedTokenizerFast) -> dict[str, int]:
    """Write a token file per side and kind, and the held-out texts; returns tokens per file."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder)
    counts = {}
    for side, documents in sides.items():
        for kind in KINDS:
            tokens = encode(tokenizer, [document for document in documents if document.kind == kind])
            np.save(folder / f"{side}-{kind}.npy", tokens)
            counts[f"{side}-{kind}"] = len(tokens)
    held_out = [{"kind": document.kind, "text": document.text} for document in sides["held_out"]]
    (folder / "held_out.jsonl").write_text("".join(json.dumps(row) + "\n" for row in held_out), encoding="utf-8")
    return counts


def listing(found: Sequence[Origin], sides: dict[str, list[Document]]) -> list[dict[str, Any]]:
    """Name, version, licence and size of the origins of training documents, the largest first."""
    known = {origin.name: (origin.version, origin.licence) for origin in found}
    known |= {name: ("", licence) for name, (_, licence) in EXERCISES.items()}
    counts, characters = Counter[str](), Counter[str]()
    for document in sides["train"]:
        counts[document.origin] += 1
        characters[document.origin] += len(document.text)
    return [
        dict(zip(("name", "version", "licence"), (name, *known[name]), strict=True))
        | {"documents": counts[name], "characters": size}
        for name, size in characters.most_common()
    ]


def checked_data(context: click.Context, parameter: click.Parameter, data: Path | None) -> Path | None:
    """Check that a data set is there: without one, no exercise is added and no evaluation text is removed."""
    if data is not None and not any((data / name).is_dir() for name in DATA):
        raise click.BadParameter(f"the folder must hold at least one of {', '.join(DATA)}, got {str(data)!r}")
    return data


@click.command()
@click.option("--out", type=FOLDER, required=True, help="Folder to write.")
@click.option("--data", type=PRESENT, callback=checked_data, help=f"Folder with {', '.join(DATA)}.")
@click.option(
    "--site-packages",
    type=PRESENT,
    multiple=True,
    help="Folder of installed distributions; may be given again.  [default: this environment's]",
)
@click.option("--vocabulary", type=click.IntRange(260, 65_536), default=8192, show_default=True)
@click.option("--tokenizer", type=PRESENT, help="Keep the one of this folder.")
def main(
    out: Path, data: Path | None, site_packages: tuple[Path, ...], vocabulary: int, tokenizer: Path | None
) -> None:
    """Gather permissively licensed Python and exercises with answers, train a tokenizer, write token files."""
    found = origins(site_packages or [Path(sysconfig.get_paths()["purelib"])])
    sides = split(gather(found, data))
    codec = load_tokenizer(tokenizer) if tokenizer else train_tokenizer(sample(sides["train"]), vocabulary)
    counts = write(out, sides, codec)
    contents = {"tokens": counts, "sources": listing(found, sides)}
    (out / "corpus.json").write_text(json.dumps(contents, indent=1) + "\n", encoding="utf-8")
    for name, count in counts.items():
        click.echo(f"{name}: {count:,} tokens")


if __name__ == "__main__":
    main()
