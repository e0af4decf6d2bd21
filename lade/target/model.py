"""The model as the decode loop sees it: prefill, one forward for the drafts of all rows, keep the accepted paths.

Everything that is particular to transformers' forward is here; nothing about drafting or choosing tokens.
n active rows, T nodes (padded), Q queried nodes, V vocabulary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from lade.core.stats import Clock
from lade.core.topk import likeliest
from lade.core.tree import Draft, ancestor_matrix
from lade.facts.temperature import follows_index
from lade.facts.vocabulary import readable
from lade.memory.stages import TOP
from lade.target.cache import TreeCache
from lade.target.masks import Block, DenseMasks, MaskKind

UNLIMITED = 1 << 30

Likeliest = tuple[list[list[list[int]]], list[list[list[float]]]]  # [n][Q][k] tokens, and their probabilities


@dataclass(eq=False)
class Outputs:
    """Logits of the queried nodes. What is read from them is computed once, without a lock: one thread decodes a call.

    Attributes:
        logits: [n, Q, V], raw, in the model's own precision.
        columns: node -> its index on the Q axis, the same for all rows.
        sharpness: inverse temperature of the probabilities that `top` reports.
        vocabulary: ids from this one on are no prediction that `top` reports; `None` reports all.
    """

    logits: torch.Tensor
    columns: dict[int, int]
    sharpness: float = 1.0
    vocabulary: int | None = None
    _floats: torch.Tensor | None = field(default=None, init=False, repr=False)
    _greedy: list[list[int]] | None = field(default=None, init=False, repr=False)
    _top: Likeliest | None = field(default=None, init=False, repr=False)

    def at(self, slot: int, node: int) -> torch.Tensor:
        """[1, V] raw logits after one node."""
        return self.logits[slot : slot + 1, self.columns[node]]

    def greedy(self, slot: int, node: int) -> int:
        if self._greedy is None:
            self._greedy = self._most_likely()
        return self._greedy[slot][self.columns[node]]

    def nan_rows(self, slots: Sequence[int]) -> list[int]:
        """Those of the slots whose logits after the root contain NaN."""
        found = self.logits[:, self.columns[0]].amax(-1).isnan().tolist()  # the largest is NaN where one is
        return [slot for slot in slots if found[slot]]

    def top(self, slot: int, node: int) -> tuple[list[int], list[float]]:
        if self._top is None:
            self._top = self._likeliest()
        tokens, probabilities = self._top
        column = self.columns[node]
        return tokens[slot][column], probabilities[slot][column]

    def _singles(self) -> torch.Tensor:
        """[n, Q, V] in float32."""
        if self._floats is None:
            self._floats = self.logits.float()
        return self._floats

    def _likeliest(self) -> Likeliest:
        """The `TOP` most likely tokens of every queried node: all that leaves the device of them."""
        logits = self._singles()[..., : self.vocabulary]
        rows, queried, size = logits.shape
        tokens, probabilities = likeliest(logits.reshape(-1, size), min(TOP, size), self.sharpness)
        return tokens.view(rows, queried, -1).tolist(), probabilities.view(rows, queried, -1).tolist()

    def _most_likely(self) -> list[list[int]]:
        """All most likely tokens in one copy; ties are broken in float32, as plain decoding does."""
        if self.logits.device.type == "cpu":
            return self._singles().numpy().argmax(-1).tolist()  # a tenth of torch's time, the same first maximum
        logits = self._singles() if self.logits.dtype == torch.float64 else self.logits
        return logits.argmax(-1).tolist()


class HFTarget:
    """A transformers causal language model that decodes trees.

    Args:
        model: the model; nothing on it is changed.
        cache: empty or holding a prefix that the prompt continues.
        kinds: which masks the model takes (`layer_kinds`).
        position_limit: positions that the model can embed, `None` where there is no such limit.
        clock: where the time in the model is counted.
        sharpness: how much likelier than its probability says a likely token is to be chosen (`Outputs.top`).
    """

    def __init__(
        self,
        model: Any,
        cache: TreeCache,
        kinds: dict[str, MaskKind] | MaskKind,
        position_limit: int | None,
        clock: Clock,
        sharpness: float = 1.0,
    ) -> None:
        self.model = model
        self.device: torch.device = model.device  # asked of a model, it looks for a parameter
        self.sharpness = sharpness
        self.cache = cache
        self.kinds = kinds
        self.position_limit = position_limit
        self.clock = clock
        self.positions: list[int] = []  # of each row's root
        self.order: list[int] = []  # which row of the user's batch stands where
        self.slices_logits = model._supports_logits_to_keep()
        self.vocabulary = readable(model)
        self.follows_index = follows_index(model.config.get_text_config(decoder=True))

    def prefill(self, input_ids: torch.Tensor, generation_config: Any, model_kwargs: dict[str, Any]) -> Outputs:
        """Run the prompt as plain decoding does, chunked where the configuration says so.

        Args:
            input_ids: [B, P], left-padded.
            model_kwargs: as transformers' `generate` hands them to its decoding method.

        Returns:
            The logits after the last prompt token, as node 0.
        """
        padding = model_kwargs.get("attention_mask")
        positions = model_kwargs.get("position_ids")
        rows = input_ids.shape[0]
        with self.clock.prefill():
            inputs = {**model_kwargs, "past_key_values": self.cache}
            logits = self.model._prefill(input_ids, generation_config, inputs).logits[:, -1:].clone()
        self.cache.grow_trees(rows)
        self.order = list(range(rows))
        last = [self.cache.lengths[0] - 1] if positions is None else positions[:, -1].tolist()
        self.positions = [position + 1 for position in (last if len(last) == rows else last * rows)]
        if padding is not None:
            # A copy: masks exchange rows in place, and the tensor is the user's.
            padding = None if bool(padding.all()) else padding.to(self.device, torch.bool, copy=True)
        eager = self.model.config.get_text_config(decoder=True)._attn_implementation == "eager"
        self.masks = DenseMasks(self.kinds, self.cache, padding, self.model.dtype, self.device, always=eager)
        return Outputs(logits, {0: 0})

    def depth_limit(self, slot: int, remaining: int) -> int:
        """How deep a draft of this row may reach: no deeper than the tokens still allowed, nor past the positions."""
        if self.position_limit is None:
            return remaining - 1
        return max(0, min(remaining - 1, self.position_limit - 1 - self.positions[slot]))

    def max_nodes(self, rows: int) -> int:
        """How many nodes each draft of the first rows may have.

        Some models cut tensors as long as their position table by the number of tokens, or of slots, of a forward.
        """
        if self.position_limit is None:
            return UNLIMITED
        return max(1, self.position_limit - max(self.cache.lengths[:rows]))

    def forward(self, drafts: Sequence[Draft]) -> Outputs:
        """One forward for the drafts of the first n rows."""
        nodes = max(map(len, drafts))
        queries = drafts[0].queries if len(drafts) == 1 else sorted(set().union(*(draft.queries for draft in drafts)))
        self.cache.prepare(len(drafts), nodes)
        inputs = self._inputs(drafts, nodes)
        some = len(queries) < nodes
        if some and self.slices_logits:
            inputs["logits_to_keep"] = torch.from_numpy(np.array(queries)).to(self.device)
        with self.clock.forward(sum(map(len, drafts)), len(drafts), nodes), self.experts_for(nodes * len(drafts)):
            logits = self.model(**inputs).logits
        if some and not self.slices_logits:
            logits = logits[:, queries]
        columns = {node: column for column, node in enumerate(queries)}
        return Outputs(logits, columns, self.sharpness, self.vocabulary)

    def discard(self, slots: Sequence[int]) -> None:
        """Nothing of what the last forward wrote in these rows is left: a masked NaN would spread."""
        self.cache.discard(slots)

    def _inputs(self, drafts: Sequence[Draft], nodes: int) -> dict[str, Any]:
        # Filled up with the root, whose keys and values are as they are anyway: another token's may be NaN.
        tokens = [draft.tokens + draft.tokens[:1] * (nodes - len(draft)) for draft in drafts]
        depths = [draft.depths + [0] * (nodes - len(draft)) for draft in drafts]
        positions = [[root + depth for depth in row] for root, row in zip(self.positions, depths, strict=False)]
        return self.inputs(tokens, positions, Block(self._visible(drafts, nodes), depths, max(map(max, depths))))

    def _visible(self, drafts: Sequence[Draft], nodes: int) -> torch.Tensor:
        if nodes == 1:
            return _roots_alone(len(drafts), self.device)
        return torch.stack([ancestor_matrix(draft.parents, nodes) for draft in drafts]).to(self.device)

    def inputs(self, tokens: list[list[int]], positions: list[list[int]], block: Block) -> dict[str, Any]:
        """What the model's forward takes for n lists of T tokens, behind a prepared cache."""
        ids, places = torch.from_numpy(np.array([tokens, positions])).to(self.device).unbind()
        if self.follows_index:
            self.cache.indexed = self._indexed((block.own or block.depths)[0])
        return {
            "input_ids": ids,
            "position_ids": places,
            "attention_mask": self.masks.build(block),
            "past_key_values": self.cache,
            "use_cache": True,
            "return_dict": True,
        }

    def _indexed(self, depths: list[int]) -> torch.Tensor:
        """[T] of the first row; where there are others, theirs have the same temperature (`lade.entry.fallback`)."""
        first = self.cache.lengths[0]
        places = [first + depth - node for node, depth in enumerate(depths)]
        return torch.tensor(places, device=self.device)

    def experts_for(self, tokens: int) -> contextlib.AbstractContextManager[Any]:
        """transformers' decode-time expert kernels copy the experts' weights per token: right for one token only.

        On a CPU it has none.
        """
        optimize = getattr(self.model, "_optimize_model_for_decode", None)
        if optimize is None or tokens > 1 or self.device.type == "cpu":
            return contextlib.nullcontext()
        return optimize()

    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        """The cache holds exactly the accepted prefix afterwards; the next roots stand behind it."""
        self.cache.keep(paths)
        for slot, path in enumerate(paths):
            self.positions[slot] += len(path)

    def swap(self, one: int, other: int) -> None:
        """Exchange two rows."""
        if one != other:
            self.cache.swap(one, other)
            self.masks.swap(one, other)
            for values in (self.positions, self.order):
                values[one], values[other] = values[other], values[one]

    def export(self, stock: DynamicCache) -> None:
        """Write what plain decoding would have cached into a stock cache, in the order of the user's batch."""
        self.cache.export(stock, sorted(range(len(self.order)), key=self.order.__getitem__))


@lru_cache(maxsize=64)
def _roots_alone(rows: int, device: torch.device) -> torch.Tensor:
    """[rows, 1, 1] bool: a root sees itself."""
    return torch.ones(rows, 1, 1, dtype=torch.bool, device=device)
