"""A causal language model of transformers as the decode loop uses it: prefill, forwards of drafts, kept paths.

Knows the forward of transformers; nothing of drafting or choosing tokens. A slot is one sequence, wherever its keys and
values are stored. n rows of a forward, T nodes (padded), Q queried nodes, V vocabulary, k tokens of a top-k.
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
from lade.memory.recycle import TOP
from lade.target.cache import TreeCache
from lade.target.masks import Block, DenseMasks, MaskKind

UNLIMITED = 1 << 30

TopK = tuple[list[list[list[int]]], list[list[list[float]]]]  # [n][Q][k] tokens, and their probabilities


@dataclass(eq=False)
class Outputs:
    """Logits of the queried nodes, with argmax and top-k computed once, on first use. For one thread.

    Attributes:
        logits: [n, Q, V], raw, in the model's precision.
        columns: node -> its index on the Q axis, the same for all rows.
        inverse_temperature: of the probabilities that `top` returns.
        vocabulary: `top` returns ids below this one; `None` for all.
    """

    logits: torch.Tensor
    columns: dict[int, int]
    inverse_temperature: float = 1.0
    vocabulary: int | None = None
    _floats: torch.Tensor | None = field(default=None, init=False, repr=False)
    _greedy: list[list[int]] | None = field(default=None, init=False, repr=False)
    _top: TopK | None = field(default=None, init=False, repr=False)

    def at(self, slot: int, node: int) -> torch.Tensor:
        """[1, V] raw logits after one node."""
        return self.logits[slot : slot + 1, self.columns[node]]

    def greedy(self, slot: int, node: int) -> int:
        """The most likely token after one node."""
        if self._greedy is None:
            self._greedy = self._argmax()
        return self._greedy[slot][self.columns[node]]

    def nan_rows(self, slots: Sequence[int]) -> list[int]:
        """Those of the slots whose logits after the root contain NaN."""
        found = self.logits[:, self.columns[0]].amax(-1).isnan().tolist()  # the largest is NaN where one is
        return [slot for slot in slots if found[slot]]

    def top(self, slot: int, node: int) -> tuple[list[int], list[float]]:
        """The `TOP` most likely tokens after one node and their probabilities, likeliest first."""
        if self._top is None:
            self._top = self._top_k()
        tokens, probabilities = self._top
        column = self.columns[node]
        return tokens[slot][column], probabilities[slot][column]

    def _float32(self) -> torch.Tensor:
        """[n, Q, V]"""
        if self._floats is None:
            self._floats = self.logits.float()
        return self._floats

    def _top_k(self) -> TopK:
        """Of every queried node; nothing else of the logits is copied to the host."""
        logits = self._float32()[..., : self.vocabulary]
        rows, queried, size = logits.shape
        tokens, probabilities = likeliest(logits.reshape(-1, size), min(TOP, size), self.inverse_temperature)
        return tokens.view(rows, queried, -1).tolist(), probabilities.view(rows, queried, -1).tolist()

    def _argmax(self) -> list[list[int]]:
        """[n][Q], in one copy to the host; ties are broken in float32, as in plain decoding."""
        if self.logits.device.type == "cpu":
            return self._float32().numpy().argmax(-1).tolist()  # a tenth of torch's time, the same first maximum
        logits = self._float32() if self.logits.dtype == torch.float64 else self.logits
        return logits.argmax(-1).tolist()


class HFTarget:
    """A causal language model of transformers that computes token trees.

    Args:
        model: not modified.
        cache: empty, or with a prefix that the prompt continues.
        kinds: `layer_kinds` of the model.
        position_limit: number of positions that the model can embed; `None` for no limit.
        clock: counts forwards and their time.
        inverse_temperature: of the probabilities in `Outputs.top`.

    Attributes:
        positions: position of each slot's root.
        order: the slot in each row of the cache.
    """

    def __init__(
        self,
        model: Any,
        cache: TreeCache,
        kinds: dict[str, MaskKind] | MaskKind,
        position_limit: int | None,
        clock: Clock,
        inverse_temperature: float = 1.0,
    ) -> None:
        self.model = model
        self.device: torch.device = model.device  # stored, since the model searches its parameters for it
        self.inverse_temperature = inverse_temperature
        self.cache = cache
        self.kinds = kinds
        self.position_limit = position_limit
        self.clock = clock
        self.positions: list[int] = []
        self.order: list[int] = []
        self.slices_logits = model._supports_logits_to_keep()
        self.vocabulary = readable(model)
        self.follows_index = follows_index(model.config.get_text_config(decoder=True))

    def prefill(self, input_ids: torch.Tensor, generation_config: Any, model_kwargs: dict[str, Any]) -> Outputs:
        """Run the prompt as plain decoding does, in chunks where the generation config asks for them.

        Args:
            input_ids: [B, P], left-padded.
            model_kwargs: what transformers' `generate` passes to its decoding method.

        Returns:
            The logits after the last prompt token, as those of node 0. Row i of the prompts is in slot i.
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
            # A copy: rows are swapped in place, and the tensor is the user's.
            padding = None if bool(padding.all()) else padding.to(self.device, torch.bool, copy=True)
        eager = self.model.config.get_text_config(decoder=True)._attn_implementation == "eager"
        self.masks = DenseMasks(self.kinds, self.cache, padding, self.model.dtype, self.device, always=eager)
        return Outputs(logits, {0: 0})

    def depth_limit(self, slot: int, remaining: int) -> int:
        """The largest depth of a draft: within the tokens that remain, and within the model's positions."""
        if self.position_limit is None:
            return remaining - 1
        return max(0, min(remaining - 1, self.position_limit - 1 - self.positions[slot]))

    def max_nodes(self, slots: Sequence[int]) -> int:
        """The most nodes per draft in these slots, at least 1.

        Some models index their position table by the number of tokens, or of keys, of a forward.
        """
        if self.position_limit is None:
            return UNLIMITED
        return max(1, self.position_limit - max(self.cache.lengths[self.order.index(slot)] for slot in slots))

    def forward(self, slots: Sequence[int], drafts: Sequence[Draft]) -> Outputs:
        """One forward of a draft in each of these slots."""
        nodes = max(map(len, drafts))
        queries = drafts[0].queries if len(drafts) == 1 else sorted(set().union(*(draft.queries for draft in drafts)))
        self.prepare(slots, nodes)
        inputs = self._inputs(slots, drafts, nodes)
        some = len(queries) < nodes
        if some and self.slices_logits:
            inputs["logits_to_keep"] = torch.from_numpy(np.array(queries)).to(self.device)
        with self.clock.forward(sum(map(len, drafts)), len(drafts), nodes), self.experts_for(nodes * len(drafts)):
            logits = self.model(**inputs).logits
        if some and not self.slices_logits:
            logits = logits[:, queries]
        columns = {node: column for column, node in enumerate(queries)}
        return Outputs(logits, columns, self.inverse_temperature, self.vocabulary)

    def discard(self, slots: Sequence[int]) -> None:
        """Clear the keys and values that the last forward wrote in these slots, since a masked NaN spreads."""
        self.cache.discard([self.order.index(slot) for slot in slots])

    def prepare(self, slots: Sequence[int], nodes: int, computed: Sequence[int] | None = None) -> None:
        """Reserve memory for trees of `nodes` nodes in these slots, which become the first rows of the cache.

        Args:
            computed: nodes of each slot that earlier forwards of the same step have written.
        """
        for row, slot in enumerate(slots):
            if self.order[row] != slot:
                self._swap(row, self.order.index(slot, row))
        self.cache.prepare(len(slots), nodes, computed)

    def _inputs(self, slots: Sequence[int], drafts: Sequence[Draft], nodes: int) -> dict[str, Any]:
        # Padded with the root, whose keys and values are in the forward anyway: those of another token may be NaN.
        tokens = [draft.tokens + draft.tokens[:1] * (nodes - len(draft)) for draft in drafts]
        depths = [draft.depths + [0] * (nodes - len(draft)) for draft in drafts]
        positions = [[self.positions[slot] + depth for depth in row] for slot, row in zip(slots, depths, strict=True)]
        return self.inputs(tokens, positions, Block(self._visible(drafts, nodes), depths, max(map(max, depths))))

    def _visible(self, drafts: Sequence[Draft], nodes: int) -> torch.Tensor:
        if nodes == 1:
            return _roots_alone(len(drafts), self.device)
        return torch.stack([ancestor_matrix(draft.parents, nodes) for draft in drafts]).to(self.device)

    def inputs(self, tokens: list[list[int]], positions: list[list[int]], block: Block) -> dict[str, Any]:
        """Arguments of the model's forward: [n][T] tokens and positions, behind a prepared cache."""
        ids, position_ids = torch.from_numpy(np.array([tokens, positions])).to(self.device).unbind()
        if self.follows_index:
            self.cache.indexed = self._indexed((block.own or block.depths)[0])
        return {
            "input_ids": ids,
            "position_ids": position_ids,
            "attention_mask": self.masks.build(block),
            "past_key_values": self.cache,
            "use_cache": True,
            "return_dict": True,
        }

    def _indexed(self, depths: list[int]) -> torch.Tensor:
        """[T] for the first row; the temperature of other rows is the same (`lade.entry.fallback`)."""
        first = self.cache.lengths[0]
        return torch.tensor([first + depth - node for node, depth in enumerate(depths)], device=self.device)

    def experts_for(self, tokens: int) -> contextlib.AbstractContextManager[Any]:
        """The decode kernels of transformers for experts, for one token: they copy weights per token. Not on CPUs."""
        optimize = getattr(self.model, "_optimize_model_for_decode", None)
        if optimize is None or tokens > 1 or self.device.type == "cpu":
            return contextlib.nullcontext()
        return optimize()

    def keep(self, slots: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        """Keep one path in each slot of the last forward, and drop all other nodes."""
        self.cache.keep(paths)
        for slot, path in zip(slots, paths, strict=True):
            self.positions[slot] += len(path)

    def _swap(self, one: int, other: int) -> None:
        """Exchange two rows of the cache."""
        self.cache.swap(one, other)
        self.masks.swap(one, other)
        self.order[one], self.order[other] = self.order[other], self.order[one]

    def export(self, stock: DynamicCache) -> None:
        """Write the rows into a cache of transformers, in the order of the slots."""
        self.cache.export(stock, sorted(range(len(self.order)), key=self.order.__getitem__))


@lru_cache(maxsize=64)
def _roots_alone(rows: int, device: torch.device) -> torch.Tensor:
    """[rows, 1, 1] bool: a root sees itself."""
    return torch.ones(rows, 1, 1, dtype=torch.bool, device=device)
