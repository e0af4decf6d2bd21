"""The file of a partly computed warm table: an interrupted computation resumes from it."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

import torch

from lade.memory.warm.resumefile import ResumeFile, Tensors
from lade.memory.warm.table import Plan, WarmPart, entry_order, new_part
from lade.memory.warm.texts import TextsPart
from lade.memory.warm.turns import check_state

KIND, FORMAT = "part of a warm table", "2"
SAVES, PAUSE = 8, 10.0  # most saves of one computation, and the least seconds between them
WHOLE, STEPS = (tuple(f"{name}.{index}" for index in range(4)) for name in ("whole", "steps"))
NEXT = ("next", "generator", "turns")


class PartFile(ResumeFile):
    """The file of one computation.

    Args:
        model: with the weights that the table is for.
    """

    def __init__(self, model: Any, plan: Plan) -> None:
        described = {name: str(value) for name, value in asdict(plan).items()}
        super().__init__(model, "", described | {"kind": KIND, "format": FORMAT}, "part of the warm table")
        self._plan, self._device = plan, model.device
        self._saves = 0

    def load(self) -> WarmPart | None:
        """The part, if the file holds one of this computation; removes any other file."""
        return self._read(lambda tensors, seconds: _part(tensors, seconds, self._plan, self._device))

    def save(self, part: WarmPart) -> None:
        """Write the file; a folder that cannot be written to is a warning."""
        if part.done:
            self._write(_tensors(part, self._plan), part.cost)

    def save_periodically(self, part: WarmPart, done: int, total: int) -> None:
        """Save a bounded number of times: a killed process loses a bounded share of the work."""
        now = time.perf_counter()
        if done * (SAVES + 1) >= total * (self._saves + 1) and now - self._saved >= PAUSE and done < total:
            self.save(part)
            self._saves, self._saved = done * (SAVES + 1) // total, time.perf_counter()


def _tensors(part: WarmPart, plan: Plan) -> Tensors:
    texts = part.texts
    steps, *following = texts.at
    ids = entry_order(plan, texts)[: part.entries]
    tensors = {"tokens": part.tokens[ids], "probabilities": part.probabilities[ids]}
    if part.prefix is not None:
        tensors["prefix"] = torch.tensor(part.prefix, dtype=torch.int64)
    if texts.whole:
        tensors |= dict(zip(WHOLE, map(torch.cat, zip(*texts.whole, strict=True)), strict=True))
    if steps:
        stacked = (torch.stack(column, dim=1) for column in zip(*texts.steps[:steps], strict=True))
        tensors |= dict(zip(STEPS, stacked, strict=True))
    tensors |= {name: found.cpu() for name, found in zip(NEXT, following, strict=True) if found is not None}
    tensors |= {name: tensor.to(torch.uint8) for name, tensor in tensors.items() if tensor.dtype == torch.bool}
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def _part(tensors: Tensors, seconds: float, plan: Plan, device: torch.device) -> WarmPart:
    """ValueError if `_tensors` cannot have made these by this plan."""
    part, entries = new_part(plan), _rows(tensors, "tokens")
    _check_predictions(tensors, "tokens", "probabilities", (entries, plan.top), plan)
    if entries > plan.vocabulary or set(tensors) - {"tokens", "probabilities", "prefix", *WHOLE, *STEPS, *NEXT}:
        raise ValueError("its entries must be those of the plan")
    part.texts, part.prefix = _texts(tensors, plan, device), _prefix(tensors, plan)
    if entries and part.prefix is None:
        raise ValueError("it must hold the prefix of its entries")
    ids = entry_order(plan, part.texts)[:entries]
    part.tokens[ids], part.probabilities[ids] = tensors["tokens"], tensors["probabilities"]
    part.entries, part.seconds = entries, seconds
    return part


def _prefix(tensors: Tensors, plan: Plan) -> tuple[int, ...] | None:
    found = tensors.get("prefix")
    if found is None:
        return None
    if found.dim() != 1:
        raise ValueError("its prefix must be a row of tokens")
    _check_tokens(found, torch.int64, plan)
    return tuple(found.tolist())


def _texts(tensors: Tensors, plan: Plan, device: torch.device) -> TextsPart:
    sizes, part = plan.texts.batches, TextsPart()
    if WHOLE[0] in tensors:
        rows = _rows(tensors, WHOLE[0])
        ended = next((count for count in range(1, len(sizes) + 1) if sum(sizes[:count]) == rows), None)
        if ended is None:
            raise ValueError("its texts must be those of the plan")
        _check_written(tensors, WHOLE, (rows, plan.texts.length), plan)
        part.whole = list(zip(*(torch.split(found, sizes[:ended]) for found in _arrays(tensors, WHOLE)), strict=True))
    part.at = (0, None, _state(tensors.get("generator"), device), None)
    if STEPS[0] in tensors and len(part.whole) < len(sizes):
        _resume(part, tensors, sizes[len(part.whole)], plan)
    return part


def _state(found: torch.Tensor | None, device: torch.device) -> torch.Tensor | None:
    try:
        if found is not None:
            torch.Generator(device).set_state(found)
    except (RuntimeError, TypeError) as error:
        raise ValueError("it must hold a state of the random generator") from error
    return found


def _resume(part: TextsPart, tensors: Tensors, rows: int, plan: Plan) -> None:
    """Restore the batch that was being written."""
    steps = tensors[STEPS[0]].shape[-1] if tensors[STEPS[0]].dim() else 0
    _check_written(tensors, STEPS, (rows, steps), plan)
    following, turns = tensors.get("next"), tensors.get("turns")
    if following is None or turns is None or part.at[2] is None or following.shape != (rows, 1):
        raise ValueError("it must hold the tokens that come next, and the state of the random generator")
    if not 0 < steps <= plan.texts.length:
        raise ValueError("its texts must be those of the plan")
    _check_tokens(following, torch.int64, plan)
    check_state(plan.texts.turns, turns, rows)
    part.steps = list(zip(*(found.unbind(1) for found in _arrays(tensors, STEPS)), strict=True))
    part.at = (steps, following, part.at[2], turns)


def _arrays(tensors: Tensors, names: tuple[str, ...]) -> list[torch.Tensor]:
    """Those of `WarmTexts`; the last one is stored as 0 and 1."""
    *arrays, counted = (tensors[name] for name in names)
    return [*arrays, counted.bool()]


def _rows(tensors: Tensors, name: str) -> int:
    if name not in tensors or not tensors[name].dim():
        raise ValueError(f"{name} is missing")
    return len(tensors[name])


def _check_written(tensors: Tensors, names: tuple[str, ...], shape: tuple[int, int], plan: Plan) -> None:
    if set(names) - set(tensors) or tuple(tensors[names[0]].shape) != shape:
        raise ValueError("its texts have the wrong shapes")
    counted = tensors[names[3]]
    if counted.dtype != torch.uint8 or tuple(counted.shape) != shape or (counted > 1).any():
        raise ValueError("it must tell which places count")
    _check_tokens(tensors[names[0]], torch.int32, plan)
    _check_predictions(tensors, names[1], names[2], (*shape, plan.top), plan)


def _check_predictions(tensors: Tensors, tokens: str, probabilities: str, shape: tuple[int, ...], plan: Plan) -> None:
    if {tokens, probabilities} - set(tensors) or not tensors[tokens].shape == tensors[probabilities].shape == shape:
        raise ValueError("its predictions have the wrong shapes")
    found = tensors[probabilities]
    _check_tokens(tensors[tokens], torch.int32, plan)
    if found.dtype != torch.float32 or not ((found >= 0) & (found <= 1)).all():
        raise ValueError("it must hold probabilities")


def _check_tokens(tokens: torch.Tensor, dtype: torch.dtype, plan: Plan) -> None:
    if tokens.dtype != dtype or not ((tokens >= 0) & (tokens < plan.vocabulary)).all():
        raise ValueError("it must hold token ids of the model")
