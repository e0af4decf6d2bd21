"""A pool as tensors, and back with every value checked.

    keys.L [n, L], -1 before a text's first token   tokens.L [n, k], -1 after the last   probabilities.L [n, k]
    counts.1 [n]: predictions per average   young [lengths]: contexts, each table's last, in the young generation
    weights.S, seen.S   one value per bucket; S is the stage's index in the metadata's `sources`. A stage that the file
                        lacks, of a source added since, starts from its priors

A token outside the vocabulary would crash the model on some devices: hence the checks. Knows no path and no lock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lade.facts.vocabulary import readable
from lade.memory.calibration import Calibration
from lade.memory.context import CONTEXT, LENGTHS, NOTHING, SHORT
from lade.memory.predictions import AVERAGED, IS_YOUNG, TOKENS, TOP, WIDTH
from lade.memory.stages import NAMES, STAGES

KIND, FORMAT = "pool", "2"
ROUNDING = 1e-6  # how far an average may exceed 1
AVERAGE = LENGTHS[-1]  # contexts with moving averages: counted, in double precision
CALIBRATION = ("weights", "seen")
SIZES = ("vocab_size", "num_hidden_layers", "hidden_size")

Layout = dict[str, tuple[tuple[int, ...], torch.dtype]]  # of each tensor the shape and the dtype
Rows = tuple[np.ndarray, np.ndarray]  # contexts of one length, and their probabilities, as of `PredictionTable.rows`


@dataclass(frozen=True, slots=True)
class Contents:
    """A pool at one moment.

    Attributes:
        rows: contexts by length, in the order of `LENGTHS`.
        numbers: of the calibration.
    """

    rows: list[Rows]
    numbers: np.ndarray


def describe(model: Any) -> dict[str, str]:
    """The file's metadata: its kind, and the type and size of its model."""
    config = model.config.get_text_config(decoder=True)
    sizes = {name: str(getattr(config, name, None)) for name in SIZES}
    sources = ",".join(NAMES)
    return {"kind": KIND, "format": FORMAT, "sources": sources, "model_type": config.model_type} | sizes


def check_description(found: dict[str, str], model: Any) -> None:
    """Raise ValueError if a file with this metadata is not a pool of this format for this model."""
    expected = describe(model)
    if found.get("kind") != KIND:
        raise ValueError("it is not a pool")
    written = _written(found)
    if found.get("format") != FORMAT or len(set(written)) < len(written) or set(written) - set(NAMES):
        raise ValueError(
            f"it must be of format {FORMAT} with distinct sources of {expected['sources']}, "
            f"got format {found.get('format')} with {found.get('sources')}"
        )
    names = [name for name in ("model_type", *SIZES) if found.get(name) != expected[name]]
    if names:
        theirs, ours = (", ".join(f"{name}={values.get(name)}" for name in names) for values in (found, expected))
        raise ValueError(f"it must be of a model with {ours}, got one with {theirs}")


def pack(contents: Contents) -> dict[str, torch.Tensor]:
    tensors = {"young": torch.tensor([int(rows[:, IS_YOUNG].sum()) for rows, _ in contents.rows])}
    for length, (rows, masses) in zip(LENGTHS, contents.rows, strict=True):
        values = {
            "keys": rows[:, CONTEXT - length : CONTEXT],
            "tokens": rows[:, TOKENS:],
            "probabilities": np.where(rows[:, TOKENS:] >= 0, masses, 0),
            "counts": rows[:, AVERAGED],
        }
        for name, (shape, dtype) in _layout(length, len(rows), TOP).items():
            tensors[f"{name}.{length}"] = torch.empty(shape, dtype=dtype).copy_(torch.from_numpy(values[name]))
    calibration = Calibration()
    calibration.numbers = contents.numbers
    for name in CALIBRATION:
        for stage, buckets in enumerate(getattr(calibration, name)):
            tensors[f"{name}.{stage}"] = torch.from_numpy(buckets.copy())
    return tensors


def unpack(tensors: dict[str, torch.Tensor], metadata: dict[str, str], model: Any) -> Contents:
    """What `pack` was given; ValueError, which says what is wrong, if it cannot have made these for this model."""
    written = _written(metadata)
    names = {"young"} | {f"{name}.{length}" for length in LENGTHS for name in _layout(length, 0, 0)}
    names |= {f"{name}.{stage}" for name in CALIBRATION for stage in range(len(written))}
    if set(tensors) != names:
        raise ValueError(f"tensors are missing or unknown: {', '.join(sorted(set(tensors) ^ names))}")
    vocabulary = readable(model)
    rows = [_table(tensors, length, vocabulary) for length in LENGTHS]
    _mark_young([each for each, _ in rows], tensors["young"])
    return Contents(rows, _calibration(tensors, written).numbers)


def _layout(length: int, size: int, top: int) -> Layout:
    """Shapes and dtypes of one table."""
    layout: Layout = {"keys": ((size, length), torch.int32), "tokens": ((size, top), torch.int32)}
    if length == AVERAGE:
        return layout | {"probabilities": ((size, top), torch.float64), "counts": ((size,), torch.int32)}
    return layout | {"probabilities": ((size, top), torch.float32)}


def _mark_young(tables: list[np.ndarray], young: torch.Tensor) -> None:
    if tuple(young.shape) != (len(tables),) or young.dtype != torch.int64:
        raise ValueError("the sizes of the young generations have the wrong shape or dtype")
    for size, rows in zip(young.tolist(), tables, strict=True):
        if not 0 <= size <= len(rows):
            raise ValueError("a young generation is larger than its table")
        rows[len(rows) - size :, IS_YOUNG] = 1


def _table(tensors: dict[str, torch.Tensor], length: int, vocabulary: int) -> Rows:
    keys, tokens = tensors[f"keys.{length}"], tensors[f"tokens.{length}"]
    layout = _layout(length, len(keys) if keys.dim() else 0, tokens.shape[-1] if tokens.dim() else 0)
    parts = [tensors[f"{name}.{length}"] for name in layout]
    if [(tuple(part.shape), part.dtype) for part in parts] != list(layout.values()):
        raise ValueError(f"the table of {length}-token contexts has the wrong shapes or dtypes")
    probabilities = tensors[f"probabilities.{length}"]
    known, present = tokens >= 0, keys != NOTHING
    if not ((keys >= NOTHING) & (keys < vocabulary)).all() or not ((tokens >= -1) & (tokens < vocabulary)).all():
        raise ValueError(f"a token is outside the vocabulary of {vocabulary}")
    if (known[:, 1:] & ~known[:, :-1]).any() or (present[:, :-1] & ~present[:, 1:]).any() or not present[:, -1].all():
        raise ValueError("there is padding where a token must be")
    if not ((probabilities >= 0) & (probabilities <= 1 + ROUNDING)).all():
        raise ValueError("a probability is not between 0 and 1")
    if len(np.unique(keys.numpy(), axis=0)) != len(keys):
        raise ValueError("a context occurs twice")
    counts = tensors[f"counts.{length}"] if length == AVERAGE else torch.ones(len(keys), dtype=torch.int32)
    if not (counts >= 1).all():
        raise ValueError("a count is not positive")
    return _rows(keys.numpy(), tokens.numpy(), probabilities.numpy(), counts.numpy())


def _rows(keys: np.ndarray, tokens: np.ndarray, probabilities: np.ndarray, counts: np.ndarray) -> Rows:
    size, width = len(keys), min(TOP, tokens.shape[1])
    rows = np.full((size, WIDTH), -1, np.int32)  # learned before any request
    rows[:, : CONTEXT - keys.shape[1]] = SHORT
    rows[:, CONTEXT - keys.shape[1] : CONTEXT] = keys
    rows[:, AVERAGED], rows[:, IS_YOUNG] = counts, 0
    rows[:, TOKENS : TOKENS + width] = tokens[:, :width]
    masses = np.zeros((size, TOP), np.float32)
    masses[:, :width] = probabilities[:, :width]
    return rows, masses


def _written(metadata: dict[str, str]) -> list[str]:
    """The stages whose weights a file holds."""
    return metadata.get("sources", "").split(",")


def _calibration(tensors: dict[str, torch.Tensor], written: list[str]) -> Calibration:
    """The file's weights; priors where it has none."""
    calibration = Calibration()
    for index, name in enumerate(written):
        weights, seen = tensors[f"weights.{index}"], tensors[f"seen.{index}"]
        stage = NAMES.index(name)
        for part, values in (("weights", weights), ("seen", seen)):
            if tuple(values.shape) != (STAGES[stage].buckets,) or values.dtype != torch.float64:
                raise ValueError(f"the calibration's {part} have the wrong shapes or dtypes")
        if not ((weights >= 0) & (weights <= 1)).all():
            raise ValueError("a weight is not between 0 and 1")
        if not ((seen > 0) & (seen < float("inf"))).all():
            raise ValueError("a weight's number of observations is not positive")
        calibration.weights[stage][:], calibration.seen[stage][:] = weights.numpy(), seen.numpy()
    return calibration
