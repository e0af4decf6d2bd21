"""The self-probe: whether a model computes the same logits for a tree as for each of its paths alone.

Runs once per model, and again after a change that may change its logits. It detects what the configuration does not
show: masks or positions that are ignored, caches that mix rows, forwards of one token that compute something else. Its
tokens are fixed, so no random generator is used.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import sqrt
from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers import DynamicCache

from lade.base.locks import ModelLocks
from lade.core.stats import Clock
from lade.core.tree import Draft, TreeBuilder
from lade.facts.precision import is_quantised, padding_works, precision
from lade.facts.temperature import changes
from lade.facts.vocabulary import readable
from lade.target.attention import NAME, can_pack, registered_function
from lade.target.cache import TreeCache
from lade.target.fused.decoder import can_fuse
from lade.target.growth import prefill_texts
from lade.target.masks import MaskKind
from lade.target.model import HFTarget
from lade.target.outputs import Outputs
from lade.target.patches import patches_of
from lade.target.verdicts import PADDED, Verdict, implementation_of, note

PROMPTS = ((0, 1, 2, 3, 4), (5, 6, 7, 4, 3))  # indices into the probe's tokens
BRANCHES = ((8, 9, 10), (8, 11), (12, 13, 8), (14,))
LONGEST = 16  # bound on the tokens of a text with its draft
ULPS, FEW_LAYERS = 2, 4  # of the largest logit, times the square root of the layers, as rounding errors add up
STEPS = 3  # one-token forwards of a model in full precision
REMEMBERED = 64  # results stored per model
FLOAT32_SHARE = 1e-3  # of the logits' standard deviation; rounding in float32 is 1e-5 of it, a wrong mask 0.1 or more

_reasons: WeakKeyDictionary[Any, dict[tuple[Any, ...], Verdict]] = WeakKeyDictionary()
_locks = ModelLocks()


def probed_reason(
    model: Any, kinds: dict[str, MaskKind] | MaskKind, position_limit: int | None, fuse: bool = True
) -> str | None:
    """Why trees cannot be decoded with this model, or `None`; cached until the model changes.

    Args:
        fuse: whether fused decoder layers are probed too, once they are possible; else nothing is computed for a model
            that was probed before.
    """
    patches = patches_of(model)
    if patches.foreign is not None:
        return f"{patches.foreign}, may do another thing to a tree than to a text"
    implementation = implementation_of(model)
    key = (
        (implementation, registered_function(implementation)),
        (model.dtype, model.device, precision(model)),
        (tuple(kinds.items()) if isinstance(kinds, dict) else kinds, position_limit),
        patches.key,
    )
    with _locks.of(model):
        verdicts = _reasons.setdefault(model, {})
        known = verdicts.get(key)
        told = known is not None and known.fused is not None
        fusible = (fuse or told) and implementation == NAME and can_fuse(model)
        fuse = fuse and fusible
        if known is None or (fuse and known.packed and known.fused is None):
            if len(verdicts) >= REMEMBERED:
                verdicts.clear()
            with _generators_restored(model.device) if patches.training else contextlib.nullcontext():
                verdicts[key] = _verdict(model, kinds, position_limit, fuse, known)
        note(model, verdicts[key] if fusible else replace(verdicts[key], fused=None))
        return verdicts[key].reason


def _verdict(
    model: Any,
    kinds: dict[str, MaskKind] | MaskKind,
    position_limit: int | None,
    fuse: bool,
    known: Verdict | None,
) -> Verdict:
    """Of packed forwards first, if the model may have them; where they fail, of padded ones.

    Args:
        fuse: whether packed ones may have fused decoder layers.
        known: the verdict without those.
    """
    unpacked: str | None = f"the model uses {implementation_of(model)} attention, or code of its own"
    if can_pack(implementation_of(model)) and _asks_the_registry(model):
        if fuse and _probe(model, kinds, position_limit, packed=True, fused=True) is None:
            return Verdict(None, None, fused=True)
        if known is not None:
            return replace(known, fused=False)
        unpacked = _probe(model, kinds, position_limit, packed=True)
        if unpacked is None:
            return Verdict(None, None, fused=False if fuse else None)
    if implementation_of(model) not in PADDED:
        return Verdict(unpacked, unpacked)
    return Verdict(_probe(model, kinds, position_limit, packed=False), unpacked)


def _asks_the_registry(model: Any) -> bool:
    """Whether code of the model knows transformers' registry of attention functions."""
    names = {type(module).__module__ for module in model.modules()}
    return any(hasattr(sys.modules.get(name), "ALL_ATTENTION_FUNCTIONS") for name in names)


def _probe(
    model: Any, kinds: dict[str, MaskKind] | MaskKind, position_limit: int | None, packed: bool, fused: bool = False
) -> str | None:
    def made(rows: Sequence[Sequence[int]]) -> HFTarget:
        target = HFTarget(model, empty_cache(model), kinds, position_limit, Clock(), packed=packed, fused=fused)
        prefill_texts(target, rows, LONGEST)
        return target

    return probed(model, made)


def probed(model: Any, made: Callable[[Sequence[Sequence[int]]], Any], rows: int = len(PROMPTS)) -> str | None:
    """Why a target does not compute trees as the model computes texts, or `None`.

    Args:
        made: texts -> a target whose slots hold all of their tokens but the last.
        rows: the most texts.
    """
    try:
        with torch.no_grad():
            error, allowed = _measure(model, made, rows)
    except Exception as failure:  # noqa: BLE001 - a model's code may raise anything; plain decoding must still run
        return f"the self-probe failed with {type(failure).__name__}: {failure}"
    if error <= allowed:
        return None
    return f"the self-probe found logits of a tree off by {error:.2g} (allowed {allowed:.2g})"


def _measure(model: Any, made: Callable[[Sequence[Sequence[int]]], Any], most: int) -> tuple[float, float]:
    size = readable(model)
    tokens = [(7919 * index + 13) % size for index in range(15)]
    rows = [[tokens[index] for index in prompt] for prompt in PROMPTS[:most]]
    if changes(model.config.get_text_config(decoder=True), 0, LONGEST):
        del rows[1:]  # the rows would need different temperatures
    elif padding_works(model) and most > 1:
        del rows[1][3:]
    target = made(rows)
    slots, error, worst = range(len(rows)), -1.0, rows[0]
    for _ in range(2):  # the second time after keeping a path that is not contiguous
        drafts = [_draft(tokens, row[-1]) for row in rows]
        branches = [(slot, _path(draft, leaf)) for slot, draft in enumerate(drafts) for leaf in _leaves(draft)]
        texts = [rows[slot][:-1] + [drafts[slot].tokens[node] for node in path] for slot, path in branches]
        expected = _stock_logits(model, texts)
        for outputs in _forwards(target, slots, drafts):
            for (slot, path), text, logits in zip(branches, texts, expected, strict=True):
                own = distance(_path_logits(outputs, slot, path), logits[-len(path) :].float())
                if own > error:
                    error, worst = own, text
        paths = [_path(draft, draft.children[draft.children[0, tokens[8]], tokens[11]]) for draft in drafts]
        target.keep(slots, paths)
        rows = [
            row + [draft.tokens[node] for node in path[1:]] + [tokens[0]]
            for row, draft, path in zip(rows, drafts, paths, strict=True)
        ]
    (logits,) = _stock_logits(model, rows[:1])
    roots = _forwards(target, [0], [Draft.alone(rows[0][-1])])
    own = max(distance(outputs.at(0, 0).float(), logits[-1:].float()) for outputs in roots)
    return _judged(model, *((rows[0], own) if own > error else (worst, error)))


def _forwards(target: Any, slots: Sequence[int], drafts: Sequence[Draft]) -> Iterator[Outputs]:
    """One, or one in each way in which fused layers may be computed."""
    fused = getattr(target, "fused", None)
    if fused is None or fused.stack is None:
        yield target.forward(slots, drafts)
        return
    for one_call in (False, True):
        fused.one_call = one_call
        yield target.forward(slots, drafts)


def empty_cache(model: Any) -> TreeCache:
    config = model.config.get_text_config(decoder=True)
    return TreeCache(DynamicCache(config=config), config)


def _draft(tokens: list[int], root: int) -> Draft:
    builder = TreeBuilder(root)
    for branch in BRANCHES:
        builder.add_path(0, [tokens[index] for index in branch], "probe")
    return builder.build()


def _leaves(draft: Draft) -> list[int]:
    return sorted(set(range(len(draft))) - set(draft.parents))


def _path(draft: Draft, node: int) -> list[int]:
    path = [node]
    while path[0]:
        path.insert(0, draft.parents[path[0]])
    return path


def _stock_logits(model: Any, texts: Sequence[list[int]]) -> list[torch.Tensor]:
    """[length, V] of each text, from one causal forward without a cache.

    Shorter texts are filled up behind their ends with what they hold: no token is read as padding.
    """
    longest = max(map(len, texts))
    ids = torch.tensor([text + (longest - len(text)) * text[-1:] for text in texts], device=model.device)
    logits = model(input_ids=ids, use_cache=False, return_dict=True).logits
    return [logits[row, : len(text)] for row, text in enumerate(texts)]


def _path_logits(outputs: Outputs, slot: int, path: list[int]) -> torch.Tensor:
    """[len(path), V]"""
    return torch.stack([outputs.at(slot, node)[0] for node in path]).float()


def distance(found: torch.Tensor, reference: torch.Tensor) -> float:
    """The largest absolute difference: 0 between equal infinities, infinity for NaN."""
    reference = reference.to(found.device)
    largest = torch.where(found == reference, 0.0, (found - reference).abs()).max().item()
    return largest if largest == largest else float("inf")


def _judged(model: Any, tokens: list[int], error: float) -> tuple[float, float]:
    """The error, and the error that is allowed.

    One-token forwards, as plain decoding runs them, are compared with one forward of several tokens. In half precision
    twice their difference is allowed, or what the layers' rounding adds up to, since some CPUs round alike for any
    width (SmolLM2-135M, 30 layers, on an EPYC: 5 units in the last place, 25 where a node misses its parent). In full
    precision their difference counts as an error too: such a model does not compute the same for one token as for
    several.

    Args:
        tokens: the text in which the error of trees is largest: half precision rounds some texts more than others.
        error: of trees.
    """
    computed_in = precision(model)
    exact = computed_in in (torch.float32, torch.float64) and not is_quantised(model)
    (wide,) = _stock_logits(model, [tokens])
    wide, steps = wide.float(), _one_by_one(model, tokens, STEPS if exact else len(tokens))
    own, spread = distance(steps, wide[-len(steps) :]), max(_finite(wide).std().item(), 1e-3)
    if exact:
        return max(error, own), FLOAT32_SHARE * spread
    if own > spread:  # more than rounding
        return own, spread
    ulp = torch.finfo(computed_in).eps * _finite(wide).abs().max().item()
    layers = getattr(model.config.get_text_config(decoder=True), "num_hidden_layers", FEW_LAYERS)
    return error, max(ULPS * sqrt(max(layers, FEW_LAYERS)) * ulp, 2 * own, FLOAT32_SHARE * spread)


def _one_by_one(model: Any, tokens: list[int], steps: int) -> torch.Tensor:
    """[steps, V] of one-token forwards at the end of a text, after one forward of the tokens before."""
    cache = DynamicCache(config=model.config.get_text_config(decoder=True))
    parts = [tokens[:-steps], *([token] for token in tokens[-steps:])]
    logits, read = [], 0
    for part in filter(None, parts):
        ids = torch.tensor([part], device=model.device)
        positions = torch.arange(read, read + len(part), device=model.device)[None]
        logits.append(model(input_ids=ids, position_ids=positions, past_key_values=cache, use_cache=True).logits[0, -1])
        read += len(part)
    return torch.stack(logits[-steps:]).float()


def _finite(logits: torch.Tensor) -> torch.Tensor:
    return logits[logits.isfinite()]


def _generators_restored(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """For models that draw random numbers: restores the generators of the host and of a CUDA device afterwards."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [])
