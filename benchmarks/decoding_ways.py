"""Ways to decode the same prompts, timed in turn: plain decoding, lade's, and those of transformers."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from ratios import over
from timed_parts import Run, told

import lade
from lade.applications.bench.methods import METHODS, Decode, MethodOptions
from lade.applications.text_measures import repetition
from lade.measure.audit import parting

STATS = (
    "tokens_per_step", "mean_forward_tokens", "proposed", "accepted", "attention", "not_static", "fallback",
    "prefill_seconds", "model_seconds", "host_seconds", "draft_seconds",
)  # fmt: skip


@dataclass(frozen=True)
class Way:
    """A way to decode.

    Attributes:
        decode: as `model.generate`.
        has_stats: whether `lade.last_stats()` tells of it.
        twice: whether it decodes each prompt once before it is timed, since a prompt may need further sizes of static
            steps, which are captured then; others do so with the first prompt alone.
        batches: whether it decodes several rows.
    """

    decode: Decode
    has_stats: bool = False
    twice: bool = False
    batches: bool = True


def listed(method: str, **more: bool) -> Way:
    """A method of `lade bench`."""
    return Way(METHODS[method].factory(MethodOptions()), **more)


def by_lade(**settings: Any) -> Way:
    """Static steps, on a CPU too."""
    config = lade.LookaheadConfig(mode="auto", static=True, **settings)
    return Way(functools.partial(lade.generate, config=config), has_stats=True, twice=True)


WAYS = {
    "plain": listed("plain"),
    "auto, one token": by_lade(budget=1),
    "auto": by_lade(),
    "auto, drafts of the device": by_lade(device_drafts=True, adapt=False),
    "static": listed("static"),
    "prompt_lookup": listed("prompt_lookup", has_stats=True, batches=False),
}


def rates(run: Run, rows: int, part: str) -> dict[str, Any]:
    """Tokens per second of each way, and how many tokens are those of plain decoding before the first other one.

    Compilation and captures are not timed: each way decodes the first prompt once before, and those of lade, which
    capture when a size is first needed, each prompt. All ways of lade share the graphs that the model keeps.
    """
    ways = {name: way for name, way in WAYS.items() if rows == 1 or way.batches}
    found: dict[str, Any] = {name: {"tokens_per_second": [], "alike": [], "error": None} for name in ways}
    run.found[part] = found | {"repetition": []}
    for number, prompts in enumerate(batches(run.prompts, rows)):
        texts: dict[str, list[list[int]]] = {}
        for name, way in ways.items():
            if found[name]["error"] is not None or time.monotonic() > run.until:
                continue
            try:
                if way.twice or not number:
                    decoded(run, way, prompts)
                texts[name] = timed(run, way, prompts, found[name])
                if "plain" in texts:
                    found[name]["alike"].append(alike(texts[name], texts["plain"]))
                if "plain" in texts and way.twice and rows == 1:
                    found[name].setdefault("partings", []).append(parted(run, prompts[0], texts["plain"], texts[name]))
            except Exception as error:  # noqa: BLE001 - the other ways go on
                found[name]["error"] = told(error, 300)
            run.save()
        if "plain" in texts:
            run.found[part]["repetition"].append([repetition(text, 4) for text in texts["plain"]])
        run.found[part]["over"] = over(found, run.found[part]["repetition"])
    return dict(run.found[part])


def decoded(run: Run, way: Way, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """The new tokens of prompts of one length."""
    return continued(way.decode, run.model, run.new_tokens, prompts)


def continued(
    decode: Callable[..., torch.Tensor], model: Any, new_tokens: int, prompts: Sequence[Sequence[int]]
) -> list[list[int]]:
    """The same, by a function such as `model.generate`, of which the model is the first argument."""
    ids = torch.tensor(prompts, device=model.device)
    mask = torch.ones_like(ids)
    found = decode(
        model, input_ids=ids, attention_mask=mask, do_sample=False, max_new_tokens=new_tokens, pad_token_id=0
    )
    return [list(row) for row in found[:, ids.shape[1] :].tolist()]


def timed(run: Run, way: Way, prompts: Sequence[Sequence[int]], into: dict[str, Any]) -> list[list[int]]:
    """The same; notes tokens per second and statistics."""
    began = run.wait()
    texts = decoded(run, way, prompts)
    into["tokens_per_second"].append(len(prompts) * run.new_tokens / (run.wait() - began))
    if way.has_stats:
        stats = lade.last_stats()
        into.setdefault("stats", []).append({name: getattr(stats, name) for name in STATS})
    return texts


def batches(prompts: Sequence[list[int]], rows: int) -> Iterator[list[list[int]]]:
    """Prompts in batches, over again where there are too few."""
    several = itertools.cycle(prompts)
    for _ in range(max(1, len(prompts) // rows)):
        yield list(itertools.islice(several, rows))


def alike(ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]) -> int:
    """Tokens of all rows before the first that differs."""
    return sum(
        next((index for index, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1]), len(one))
        for one, other in zip(ours, theirs, strict=True)
    )


def parted(
    run: Run, prompt: Sequence[int], plain: Sequence[Sequence[int]], ours: Sequence[Sequence[int]]
) -> dict[str, Any] | None:
    """Where the texts of one prompt part, and whether rounding explains it (`lade.measure.audit`)."""
    texts = [torch.tensor([*prompt, *text]) for (text,) in (plain, ours)]
    found = parting(run.model, *texts, len(prompt))
    return None if found is None else found.as_dict()
