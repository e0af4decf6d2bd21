"""`lade corpus`: makes a corpus, from which drafts come, of text files.

Knows the terminal and files of text; corpora are `lade.memory.corpora`'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import click

from lade.applications.corpora import made, tokenised
from lade.applications.exits import Command, failing, usage
from lade.applications.options import MODEL
from lade.applications.outputs import check_suffix, make_room, taken
from lade.base.shown import invalid
from lade.files.jsonobject import json_object, read_lines
from lade.files.regularfile import MEBIBYTE, naming, read_text

LINES, KEY = ".jsonl", "text"
MOST = 512 * MEBIBYTE  # of one file


@dataclass(slots=True)
class Reading:
    """Texts of files, and what was left out.

    Attributes:
        skipped: files of folders that are empty, not UTF-8 text, or lines without texts.
    """

    paths: Sequence[Path]
    skipped: int = field(default=0, init=False)

    def texts(self) -> Iterator[str]:
        """The files' texts, in the order of their names within a folder."""
        for path in self.paths:
            yield from self._of_folder(path) if path.is_dir() else texts_of(path)

    def _of_folder(self, folder: Path) -> Iterator[str]:
        for path in sorted(folder.rglob("*")):
            hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
            if hidden or not path.is_file():
                continue
            found = list[str]()
            with suppress(OSError, ValueError):
                found = [text for text in texts_of(path) if text]
            self.skipped += not found
            yield from found


def texts_of(path: Path) -> list[str]:
    """The text of a file, or those of its JSON lines. ValueError, which names the file, where there are none."""
    if path.suffix != LINES:
        with naming(path):
            return [read_text(path, MOST)]
    return [_of_line(line, f"{path}:{number}") for number, line in read_lines(path, MOST)]


def _of_line(line: str, where: str) -> str:
    text = json_object(line, where).get(KEY)
    if not isinstance(text, str):
        raise invalid(f"{where}: {KEY!r}", "text", text)
    return text


@click.command("corpus", cls=Command)
@click.argument("model", callback=MODEL)
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="File for the corpus (.safetensors).")
@click.option("--overwrite", is_flag=True, help="Replace the file if it exists.")
def command(model: str, paths: tuple[Path, ...], out: Path, overwrite: bool) -> None:
    """Make a corpus of the texts in PATHS: MODEL then drafts from what followed in them.

    For texts that answers repeat, such as documentation, code, templates or earlier answers. PATHS are UTF-8 text
    files, JSON lines with `text` (.jsonl), and folders of both. `lade.config_lade(CORPUS=OUT)` and `lade serve
    --corpus OUT` draft from it. It holds MODEL's tokens: a model with another tokenizer needs a corpus of its own.
    """
    from lade.memory.corpora import MOST as MOST_TOKENS
    from lade.models.load import load_tokenizer

    with usage():
        check_suffix("--out", out, [".safetensors"])
        if out.exists() and not overwrite:
            raise taken("--out", out)
        make_room("--out", out)
    with failing(OSError, ValueError, ImportError):
        tokenizer = load_tokenizer(model)
    reading = Reading(paths)
    encode = partial(tokenizer, add_special_tokens=False, verbose=False)
    with failing(OSError, ValueError):
        texts = tokenised(reading.texts(), lambda text: encode(text)["input_ids"], MOST_TOKENS)
    left_out = f"; files left out, which are no text: {reading.skipped}" if reading.skipped else ""
    if not texts:
        raise click.ClickException(f"PATHS must hold at least one text, got {', '.join(map(str, paths))}{left_out}")
    with failing(OSError, ValueError):
        made(texts).save(out)
    click.echo(f"texts: {len(texts):,}; tokens: {sum(map(len, texts)):,}{left_out}")
    click.echo(f"{out} ({out.stat().st_size:,} bytes)")
