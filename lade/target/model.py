"""A causal language model of transformers as the decode loop uses it: prefill, forwards of drafts, kept paths.

Knows the forward of transformers; nothing of drafting or choosing tokens. A slot is one sequence, wherever its keys and
values are stored. n rows of a forward, T nodes (padded), Q queried nodes, V vocabulary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from lade.core.stats import Clock
from lade.core.tree import Draft, ancestor_matrix
from lade.facts.temperature import follows_index
from lade.facts.vocabulary import readable
from lade.target.cache import TreeCache
from lade.target.masks import Block, DenseMasks, MaskKind
from lade.target.outputs import Outputs

UNLIMITED = 1 << 30


class HFTarget:
    """A causal language model of transformers that computes token trees.

    Args:
        model: not modified.
        cache: empty, or with a prefix that the prompt continues.
        kinds: `layer_kinds` of the model.
        position_limit: number of positions that the model can embed; `None` for no limit.
        clock: counts forwards and their time.

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
    ) -> None:
        self.model = model
        self.device: torch.device = model.device  # stored, since the model searches its parameters for it
        self.cache = cache
        self.kinds = kinds
        self.position_limit = position_limit
        self.clock = clock
        self.packed = False
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
        return Outputs(logits[:, 0], [{0: row} for row in range(rows)])

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
        lines = [{node: first + column for column, node in enumerate(queries)} for first in _starts(drafts, queries)]
        return Outputs(logits.flatten(0, 1), lines, vocabulary=self.vocabulary)

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


def _starts(drafts: Sequence[Draft], queries: Sequence[int]) -> range:
    """The line of each row's first queried node."""
    return range(0, len(drafts) * len(queries), len(queries))


@lru_cache(maxsize=64)
def _roots_alone(rows: int, device: torch.device) -> torch.Tensor:
    """[rows, 1, 1] bool: a root sees itself."""
    return torch.ones(rows, 1, 1, dtype=torch.bool, device=device)
