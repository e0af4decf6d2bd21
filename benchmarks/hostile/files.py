"""Damaged files of lade: the text must be plain decoding's, with a warning at most.

Functions that load a named file must raise ValueError with its name, or OSError if it cannot be read.
"""

from __future__ import annotations

import contextlib
import copy
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import lade
from hostile import generate
from hostile.case import Case
from hostile.damage import ANY, OBJECTS, PLACES, TENSORS, Rewrite, revalued, rewritten
from hostile.prompts import prompts, vocabulary_of
from hostile.subjects import subject
from hostile.verdict import CaseVerdict
from hostile.warmth import keep_corpus, keep_table
from lade.config.preset import write as write_preset
from lade.config.settings import FIELDS
from lade.facts.vocabulary import readable
from lade.files.safefile import write
from lade.memory.corpusfile import load_corpus
from lade.pace.costfile import cost_file, describe
from lade.pace.knots import KNOTS
from lade.target.skipset import SkipSet, write_skip_set

TENANT = "somebody"
ALLOWED = ("CacheWarning",)  # lade's warnings about its cache folder


def _table(case: Case, model: Any, folder: Path) -> Path:
    return keep_table(case, model)


def _costs(case: Case, model: Any, folder: Path) -> Path:
    path = cost_file(model)
    logs = {
        f"{rows}.{context}": torch.linspace(0.1, 2, len(KNOTS) - 1).double() for rows in (0, 1) for context in (7, 8)
    }
    write(path, logs, describe(model))
    return path


def _pool(case: Case, model: Any, folder: Path) -> Path:
    path = folder / "pool.safetensors"
    config = lade.LookaheadConfig(mode="auto", tenant=TENANT)
    with lade.lookahead(model, config):
        model.generate(**prompts(case, vocabulary_of(model)), do_sample=False, max_new_tokens=8)
    lade.save_pool(model, path, tenant=TENANT)
    lade.drop_pools()
    return path


def _preset(case: Case, model: Any, folder: Path) -> Path:
    path = folder / "preset.json"
    settings = {"auto": {"BUDGET": 16, "ADAPT": False}, "lookahead": {"LEVEL": 5, "WINDOW_SIZE": 7}}
    write_preset(path, "auto", settings, {"model": "somewhere"})
    return path


def _skip_set(case: Case, model: Any, folder: Path) -> Path:
    path = folder / "skip.json"
    write_skip_set(path, SkipSet((0,), (0,)), {"speed": 1.5})
    return path


def _corpus(case: Case, model: Any, folder: Path) -> Path:
    return keep_corpus(case, model, folder)


FILES: dict[str, Callable[[Case, Any, Path], Path]] = {
    "table": _table,
    "costs": _costs,
    "pool": _pool,
    "preset": _preset,
    "skip-set": _skip_set,
    "corpus": _corpus,
}
DAMAGES: dict[str, dict[str, Rewrite]] = {
    **dict.fromkeys(("table", "costs", "pool", "corpus"), ANY | TENSORS),
    **dict.fromkeys(("preset", "skip-set"), ANY | OBJECTS),
}
FOLDERS = ("file", "fifo", "dangling", "below-a-file", "no-user")
ATTACKS = tuple(
    [f"{file}:{how}" for file, damages in DAMAGES.items() for how in (*damages, *PLACES)]
    + [f"{file}:revalued" for file in ("table", "costs", "pool", "corpus")] * 6
    + [f"folder:{how}" for how in FOLDERS] * 2
)


def run(case: Case, verdict: CaseVerdict) -> None:
    model = copy.deepcopy(subject(case.model, case.attention, case.dtype))  # a copy has no cached state
    file, how = case.attack.split(":")
    before = os.environ["LADE_CACHE"]
    folder = Path(before) / f"case{case.index}"
    folder.mkdir(parents=True)
    os.environ["LADE_CACHE"] = str(folder)
    try:
        if file == "folder":
            os.environ["LADE_CACHE"] = _odd_folder(folder, how)
        else:
            path = FILES[file](case, model, folder)
            _damage(case, path, how)
            found = _loaded(file, model, path)
            verdict.differences += found
            if file == "corpus" and _reads(path, model):
                case = replace(case, config=case.config | {"corpus": str(path)})
        generate.compare(case, model, verdict, ALLOWED)
    finally:
        os.environ["LADE_CACHE"] = before
        shutil.rmtree(folder)
        lade.config_lade(**dict.fromkeys(FIELDS))
        lade.drop_pools()


def _reads(path: Path, model: Any) -> bool:
    """Whether the corpus is one still."""
    with contextlib.suppress(OSError, ValueError):
        load_corpus(path, readable(model))
        return True
    return False


def _damage(case: Case, path: Path, how: str) -> None:
    draws = case.draws("damage")
    if how == "revalued":
        revalued(path, draws)
    elif how in PLACES:
        PLACES[how](path)
    else:
        rewritten(path, (ANY | TENSORS | OBJECTS)[how] if how != "not-utf8" else _not_utf8(path), draws)


def _not_utf8(path: Path) -> Rewrite:
    return (OBJECTS if path.suffix == ".json" else TENSORS)["not-utf8"]


def _loaded(file: str, model: Any, path: Path) -> list[str]:
    """Errors of the function that loads this file by name."""
    loads: dict[str, Callable[[], Any]] = {
        "pool": lambda: lade.load_pool(model, path, tenant=TENANT),
        "preset": lambda: lade.config_lade(PRESET=str(path)),
        "skip-set": lambda: lade.SelfSpeculative(path),
        "corpus": lambda: load_corpus(path, readable(model)),
    }
    if file not in loads:
        return []
    allowed = (ValueError,) if file == "preset" or path.is_file() else (ValueError, OSError)
    try:
        loads[file]()
    except allowed as error:
        return [] if path.name in str(error) else [f"the error about {path.name} does not name it: {error}"]
    except Exception as error:  # noqa: BLE001 - a finding
        return [f"loading raises {type(error).__name__}: {str(error)[:200]}"]
    return []


def _odd_folder(folder: Path, how: str) -> str:
    """A value of LADE_CACHE that is not a usable folder."""
    if how == "no-user":
        return "~nobody-of-this-name/lade"
    place = folder / "cache"
    place.write_text("no folder")
    if how == "below-a-file":
        return str(place / "deeper")
    if how != "file":
        PLACES[how](place)
    return str(place)
