"""The self-probe: does this model give a tree the logits that its paths would get alone?

Once per model, attention implementation, precision and device. It catches what no configuration tells: masks or
positions that are ignored, caches that mix rows. Tokens are fixed, so no random generator is touched.
"""

from __future__ import annotations

import threading
from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers import DynamicCache

from lade.attention.dense import Kind
from lade.cache import TreeCache
from lade.fallback import padding_works
from lade.growth import prefill_texts
from lade.precision import is_quantised, precision
from lade.stats import Clock
from lade.target import HFTarget, Outputs
from lade.tree import Draft, TreeBuilder
from lade.vocabulary import readable

PROMPTS = ((0, 1, 2, 3, 4), (5, 6, 7, 4, 3))  # indices into the probe's tokens
BRANCHES = ((8, 9, 10), (8, 11), (12, 13, 8), (14,))
ULPS = 4
FLOAT32_SHARE = 1e-3  # of the logits' standard deviation: float32 noise is 1e-5 of it, a wrong mask 0.1 and more

_verdicts: WeakKeyDictionary[Any, dict[tuple[Any, ...], str | None]] = WeakKeyDictionary()
_lock = threading.Lock()


def probed_reason(model: Any, kinds: dict[str, Kind] | Kind, position_limit: int | None) -> str | None:
    """Why trees come out wrong on this model, or `None` where they are right; remembered per model."""
    key = (
        model.config.get_text_config(decoder=True)._attn_implementation,
        model.dtype,
        model.device,
        precision(model),
    )
    with _lock:
        verdicts = _verdicts.setdefault(model, {})
        if key not in verdicts:
            verdicts[key] = _probe(model, kinds, position_limit)
        return verdicts[key]


def _probe(model: Any, kinds: dict[str, Kind] | Kind, position_limit: int | None) -> str | None:
    try:
        with torch.no_grad():
            error, allowed = _measure(model, kinds, position_limit)
    except Exception as failure:  # noqa: BLE001 - whatever a model's own code raises, the text must still come out
        return f"the self-probe failed with {type(failure).__name__}: {failure}"
    if error <= allowed:
        return None
    return f"the self-probe found logits of a tree off by {error:.2g} (allowed {allowed:.2g})"


def _measure(model: Any, kinds: dict[str, Kind] | Kind, position_limit: int | None) -> tuple[float, float]:
    size = readable(model)
    tokens = [(7919 * index + 13) % size for index in range(15)]
    rows = [[tokens[index] for index in prompt] for prompt in PROMPTS]
    if padding_works(model):
        del rows[1][3:]
    target = HFTarget(model, empty_cache(model), kinds, position_limit, Clock())
    prefill_texts(target, rows)
    error, reference = 0.0, torch.zeros(1)
    for _ in range(2):  # the second time behind a kept path that is not contiguous
        drafts = [_draft(tokens, row[-1]) for row in rows]
        target.positions = [len(row) - 1 for row in rows]
        outputs = target.forward(drafts)
        for slot, (row, draft) in enumerate(zip(rows, drafts, strict=True)):
            for leaf in _leaves(draft):
                path = _path(draft, leaf)
                reference = _stock_logits(model, row[:-1] + [draft.tokens[node] for node in path])[-len(path) :]
                error = max(error, _distance(outputs, slot, path, reference))
        paths = [_path(draft, draft.children[draft.children[0, tokens[8]], tokens[11]]) for draft in drafts]
        target.keep(paths)
        rows = [
            row + [draft.tokens[node] for node in path[1:]] + [tokens[0]]
            for row, draft, path in zip(rows, drafts, paths, strict=True)
        ]
    return error, _allowance(model, rows[0], reference)


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


def _stock_logits(model: Any, tokens: list[int]) -> torch.Tensor:
    """[len(tokens), V] of a plain causal forward without a cache."""
    ids = torch.tensor([tokens], device=model.device)
    return model(input_ids=ids, use_cache=False, return_dict=True).logits[0].float()


def _distance(outputs: Outputs, slot: int, path: list[int], reference: torch.Tensor) -> float:
    found = torch.stack([outputs.at(slot, node)[0] for node in path]).float()
    distance = (found - reference.to(found.device)).abs().max().item()
    return distance if distance == distance else float("inf")


def _allowance(model: Any, tokens: list[int], logits: torch.Tensor) -> float:
    """How far plain decoding itself is from plain decoding: one-token steps against one wide forward, doubled."""
    computed_in, exact = precision(model), 0.0
    if computed_in in (torch.float32, torch.float64):
        exact = FLOAT32_SHARE * max(logits.std().item(), 1e-3)
        if not is_quantised(model):
            return exact
    cache = DynamicCache(config=model.config.get_text_config(decoder=True))
    wide = _stock_logits(model, tokens)
    steps = []
    for token in tokens:
        ids = torch.tensor([[token]], device=model.device)
        steps.append(model(input_ids=ids, past_key_values=cache, use_cache=True).logits[0, -1].float())
    own = (torch.stack(steps) - wide).abs().max().item()
    ulp = torch.finfo(computed_in).eps * wide.abs().max().item()
    return max(ULPS * ulp, 2 * own, exact)
