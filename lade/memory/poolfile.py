"""A pool as tensors, and back with every value checked.

    keys.L [n, L], -1 before a text's first token   tokens.L [n, k], -1 after the last   probabilities.L [n, k]
    counts.1 [n]: predictions per average   young [lengths]: contexts, each table's last, in the young generation
    weights.S, seen.S   one value per bucket; S is the stage's index in the metadata's `sources`. A stage that the file
                        lacks, of a source added since, starts from its priors

A token outside the vocabulary would crash the model on some devices: hence the checks. Knows no path and no lock.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from lade.facts.vocabulary import readable
from lade.memory.calibration import Calibration
from lade.memory.recycle import LENGTHS, NOTHING, TOP, Average, Entry
from lade.memory.sources import prior_calibration, stages

KIND, FORMAT = "pool", "2"
ROUNDING = 1e-9  # how far an average may exceed 1
MOST_SEEN = 2**31 - 1  # what a count's int32 holds
AVERAGED = LENGTHS[-1]  # contexts with moving averages: counted, in double precision
CALIBRATION = ("weights", "seen")
SIZES = ("vocab_size", "num_hidden_layers", "hidden_size")

Layout = dict[str, tuple[tuple[int, ...], torch.dtype]]  # of each tensor the shape and the dtype
Table = dict[tuple[int, ...], Entry | Average]


@dataclass(frozen=True, slots=True)
class Contents:
    """A pool at one moment.

    Attributes:
        old: predictions of the old generation, in the order of `LENGTHS`.
        young: predictions of the young generation, which is read first.
        weights: of the calibration, by stage and bucket.
        seen: observations per weight.
    """

    old: list[Table]
    young: list[Table]
    weights: list[list[float]]
    seen: list[list[float]]


def describe(model: Any) -> dict[str, str]:
    """The file's metadata: its kind, and the type and size of its model."""
    config = model.config.get_text_config(decoder=True)
    sizes = {name: str(getattr(config, name, None)) for name in SIZES}
    sources = ",".join(stage.name for stage in stages())
    return {"kind": KIND, "format": FORMAT, "sources": sources, "model_type": config.model_type} | sizes


def check_description(found: dict[str, str], model: Any) -> None:
    """Raise ValueError if a file with this metadata is not a pool of this format for this model."""
    expected = describe(model)
    if found.get("kind") != KIND:
        raise ValueError("it is not a pool")
    written = _written(found)
    if found.get("format") != FORMAT or len(set(written)) < len(written) or set(written) - {s.name for s in stages()}:
        raise ValueError(
            f"it must be of format {FORMAT} with distinct sources of {expected['sources']}, "
            f"got format {found.get('format')} with {found.get('sources')}"
        )
    names = [name for name in ("model_type", *SIZES) if found.get(name) != expected[name]]
    if names:
        theirs, ours = (", ".join(f"{name}={values.get(name)}" for name in names) for values in (found, expected))
        raise ValueError(f"it must be of a model with {ours}, got one with {theirs}")


def pack(contents: Contents) -> dict[str, torch.Tensor]:
    tensors = {"young": torch.tensor([len(table) for table in contents.young])}
    for length, old, young in zip(LENGTHS, contents.old, contents.young, strict=True):
        table = {key: entry for key, entry in old.items() if key not in young} | young
        values: dict[str, list[Any]] = {
            "keys": [token for key in table for token in key],
            "tokens": _padded([entry[0] for entry in table.values()], -1),
            "probabilities": _padded([entry[1] for entry in table.values()], 0.0),
            "counts": [min(entry[-1], MOST_SEEN) for entry in table.values()] if length == AVERAGED else [],
        }
        for name, (shape, dtype) in _layout(length, len(table), TOP).items():
            tensors[f"{name}.{length}"] = torch.tensor(values[name], dtype=dtype).reshape(shape)
    for name in CALIBRATION:
        for stage, buckets in enumerate(getattr(contents, name)):
            tensors[f"{name}.{stage}"] = torch.tensor(buckets, dtype=torch.float64)
    return tensors


def unpack(tensors: dict[str, torch.Tensor], metadata: dict[str, str], model: Any) -> Contents:
    """What `pack` was given; ValueError, which says what is wrong, if it cannot have made these for this model."""
    written = _written(metadata)
    names = {"young"} | {f"{name}.{length}" for length in LENGTHS for name in _layout(length, 0, 0)}
    names |= {f"{name}.{stage}" for name in CALIBRATION for stage in range(len(written))}
    if set(tensors) != names:
        raise ValueError(f"tensors are missing or unknown: {', '.join(sorted(set(tensors) ^ names))}")
    vocabulary = readable(model)
    halves = _halves([_table(tensors, length, vocabulary) for length in LENGTHS], tensors["young"])
    calibration = _calibration(tensors, written)
    return Contents(*halves, calibration.weights, calibration.seen)


def _padded(rows: list[list[Any]], padding: float) -> list[Any]:
    """All rows in one list, each padded to `TOP`. Nested lists would cost garbage collection time."""
    flat: list[Any] = []
    for row in rows:
        flat += row
        flat.extend([padding] * (TOP - len(row)))
    return flat


def _layout(length: int, size: int, top: int) -> Layout:
    """Shapes and dtypes of one table."""
    layout: Layout = {"keys": ((size, length), torch.int32), "tokens": ((size, top), torch.int32)}
    if length == AVERAGED:
        return layout | {"probabilities": ((size, top), torch.float64), "counts": ((size,), torch.int32)}
    return layout | {"probabilities": ((size, top), torch.float32)}


def _halves(tables: list[Table], young: torch.Tensor) -> tuple[list[Table], list[Table]]:
    if tuple(young.shape) != (len(tables),) or young.dtype != torch.int64:
        raise ValueError("the sizes of the young generations have the wrong shape or dtype")
    old: list[Table] = []
    new: list[Table] = []
    for size, table in zip(young.tolist(), tables, strict=True):
        if not 0 <= size <= len(table):
            raise ValueError("a young generation is larger than its table")
        entries = iter(table.items())
        old.append(dict(islice(entries, len(table) - size)))
        new.append(dict(entries))
    return old, new


def _table(tensors: dict[str, torch.Tensor], length: int, vocabulary: int) -> Table:
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
    columns = [_cut(tokens, known), _cut(probabilities, known)]
    if length == AVERAGED:
        counts = tensors[f"counts.{length}"]
        if not (counts >= 1).all():
            raise ValueError("a count is not positive")
        columns.append(counts.tolist())
    contexts = zip(*keys.t().tolist(), strict=True)  # tuples, made at once: few objects for the garbage collector
    table: Table = dict(zip(contexts, zip(*columns, strict=True), strict=True))
    if len(table) != len(keys):
        raise ValueError("a context occurs twice")
    return table


def _cut(rows: torch.Tensor, known: torch.Tensor) -> list[list[Any]]:
    """The rows without their padding, and no longer than `TOP`."""
    lists = rows.tolist()
    for row, width in zip(lists, known.sum(1).clamp(max=TOP).tolist(), strict=True):
        del row[width:]
    return lists


def _written(metadata: dict[str, str]) -> list[str]:
    """The stages whose weights a file holds."""
    return metadata.get("sources", "").split(",")


def _calibration(tensors: dict[str, torch.Tensor], written: list[str]) -> Calibration:
    """The file's weights; priors where it has none."""
    calibration = prior_calibration()
    names = [stage.name for stage in stages()]
    for index, name in enumerate(written):
        weights, seen = tensors[f"weights.{index}"], tensors[f"seen.{index}"]
        stage = names.index(name)
        buckets = len(calibration.weights[stage])
        for part, values in (("weights", weights), ("seen", seen)):
            if tuple(values.shape) != (buckets,) or values.dtype != torch.float64:
                raise ValueError(f"the calibration's {part} have the wrong shapes or dtypes")
        if not ((weights >= 0) & (weights <= 1)).all():
            raise ValueError("a weight is not between 0 and 1")
        if not ((seen > 0) & (seen < float("inf"))).all():
            raise ValueError("a weight's number of observations is not positive")
        calibration.weights[stage], calibration.seen[stage] = weights.tolist(), seen.tolist()
    return calibration
