"""A causal language model of transformers as the decode loop uses it: prefill, forwards of drafts, kept paths.

Knows the forward of transformers; nothing of drafting or choosing tokens. A slot is one sequence, wherever its keys and
values are stored. n rows of a forward, T nodes, M queried nodes, V vocabulary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import DynamicCache

from lade.core.stats import Clock
from lade.core.tree import Draft
from lade.facts.temperature import follows_index
from lade.facts.vocabulary import readable
from lade.target.available import ways_of
from lade.target.cache import TreeCache
from lade.target.call import UNLIMITED
from lade.target.choice import tried
from lade.target.fused.decoder import decoder_for
from lade.target.masks import Mask, MaskKind, TreeMasks
from lade.target.nextinputs import next_inputs
from lade.target.outputs import Outputs
from lade.target.packed import PackedRows
from lade.target.padded import PaddedRows
from lade.target.pieces import Piece
from lade.target.verdicts import PADDED, fuses, implementation_of, packs


class HFTarget:
    """A causal language model of transformers that computes token trees.

    Args:
        model: not modified.
        cache: empty, or with a prefix that the prompt continues.
        kinds: `layer_kinds` of the model.
        position_limit: number of positions that the model can embed; `None` for no limit.
        clock: counts forwards and their time.
        packed: whether forwards take trees of unequal sizes without padding; `None`: as the self-probe found. Models
            whose attention takes no mask have no other way.
        flash: whether flash attention computes them wherever it can.
        fused: whether packed forwards have fused decoder layers; `None`: as the self-probe found.

    Attributes:
        implementation: of attention, that the model was loaded with.
        ways: of attention that packed forwards may use.
        positions: position of each slot's root.
        untimed, undisturbed: as of `lade.engine.protocols.Target`.
    """

    def __init__(
        self,
        model: Any,
        cache: TreeCache,
        kinds: dict[str, MaskKind] | MaskKind,
        position_limit: int | None,
        clock: Clock,
        packed: bool | None = None,
        flash: bool = False,
        fused: bool | None = None,
    ) -> None:
        config = model.config.get_text_config(decoder=True)
        self.model = model
        self.device: torch.device = model.device  # stored, since the model searches its parameters for it
        self.implementation = implementation_of(model)
        self.packed = packs(model) if packed is None else packed or self.implementation not in PADDED
        self.ways = ways_of(self.implementation, self.device, flash)
        self.cache = cache
        cache.pack(self.packed)
        self.masks = TreeMasks(kinds, self.cache, model.dtype, self.device, always=self.implementation == "eager")
        self.position_limit = position_limit
        self.clock = clock
        self.positions: dict[int, int] = {}
        self.untimed = self.undisturbed = False
        self.slices_logits = model._supports_logits_to_keep()
        self.vocabulary = readable(model)
        self.follows_index = follows_index(config)
        self.fused = decoder_for(model, cache, self.masks) if fused and self.packed else None
        if fused is None:
            self.fuse()
        self._rows = PackedRows(self) if self.packed else PaddedRows(self)

    def fuse(self) -> None:
        """Fuse decoder layers from the next forward on, if the self-probe has found that they may be."""
        if self.fused is None and self.packed and fuses(self.model):
            self.fused = decoder_for(self.model, self.cache, self.masks)

    def prefill(
        self, input_ids: torch.Tensor, generation_config: Any, model_kwargs: dict[str, Any], most: int | None = None
    ) -> Outputs:
        """Run the prompt as plain decoding does, in chunks where the generation config asks for them.

        Args:
            input_ids: [B, P], left-padded.
            model_kwargs: what transformers' `generate` passes to its decoding method.
            most: tokens of prompt and answer; `None` if nothing bounds them.

        Returns:
            The logits after the last prompt token, as those of node 0. Row i of the prompts is in slot i.
        """
        return self.place(self.read(input_ids, generation_config, model_kwargs), input_ids, model_kwargs, most)

    def place(
        self,
        logits: torch.Tensor,
        input_ids: torch.Tensor,
        model_kwargs: dict[str, Any],
        most: int | None = None,
        slots: Sequence[int] | None = None,
    ) -> Outputs:
        """Move prompts that were read into slots; arguments as of `prefill`, and the result.

        Args:
            logits: of `read`.
            slots: of the rows, open and empty; `None`: those from 0 on, which are opened.
        """
        padding, opened = model_kwargs.get("attention_mask"), slots is not None
        slots = range(input_ids.shape[0]) if slots is None else slots
        self.cache.end_prefill(slots, most, opened)
        self.masks.open(slots, None if padding is None or bool(padding.all()) else padding.bool())
        roots = next_inputs(self.model, input_ids, model_kwargs).of_roots(len(slots))
        self.positions |= dict(zip(slots, roots or [self.cache.lengths[slots[0]]] * len(slots), strict=True))
        return Outputs(logits, [{0: row} for row in range(len(slots))])

    def read(self, input_ids: torch.Tensor, generation_config: Any, model_kwargs: dict[str, Any]) -> torch.Tensor:
        """[B, V] logits after prompts whose keys and values wait in the cache for `place`; arguments as of `prefill`.

        Raises:
            Exception: as the model's code raises; open slots are as before.
        """
        self.cache.begin_prefill()
        try:
            with self.clock.prefill():
                inputs = {**model_kwargs, "past_key_values": self.cache}
                logits: torch.Tensor = self.model._prefill(input_ids, generation_config, inputs).logits[:, -1].clone()
        except BaseException:
            self.cache.leave_prefill()
            raise
        return logits

    def open(self, slot: int, tokens: int, most: int | None = None) -> None:
        """Start an empty sequence.

        Args:
            tokens: of the prompt.
            most: tokens of prompt and answer; `None` if nothing bounds them.
        """
        self.cache.leave_prefill()
        self.cache.open([slot], tokens, most)
        self.masks.open([slot])
        self.positions[slot] = 0

    def close(self, slot: int) -> None:
        """Free a slot."""
        self.cache.close(slot)
        self.masks.close(slot)
        self.positions.pop(slot, None)

    def depth_limit(self, slot: int, remaining: int) -> int:
        """The largest depth of a draft: within the tokens that remain, and within the model's positions.

        Negative where the root is beyond these.
        """
        if self.position_limit is None:
            return remaining - 1
        return min(remaining - 1, self.position_limit - 1 - self.positions[slot])

    def max_nodes(self, slots: Sequence[int]) -> int:
        """The most nodes per draft in these slots, at least 1.

        Some models index their position table by the number of tokens, or of keys, of a forward.
        """
        if self.position_limit is None:
            return UNLIMITED
        return max(1, self.position_limit - max(self.cache.lengths[slot] for slot in slots))

    def forward(self, slots: Sequence[int], drafts: Sequence[Draft]) -> Outputs:
        """One forward of a draft in each of these slots."""
        before = tried()
        with self.clock.forward(sum(map(len, drafts)), len(drafts), max(map(len, drafts))):
            logits, lines = self.compute(slots, [Piece.whole(draft) for draft in drafts])
        self.untimed = tried() != before
        return Outputs(logits, lines, vocabulary=self.vocabulary)

    def compute(
        self, slots: Sequence[int], pieces: Sequence[Piece]
    ) -> tuple[torch.Tensor, Sequence[Mapping[int, int]]]:
        """[M, V] logits of the queries of pieces in these slots, and per row the line of each node in them."""
        return self._rows.compute(slots, pieces)

    def logits(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        masks: Mask | dict[str, Mask],
        asked: torch.Tensor | None,
    ) -> torch.Tensor:
        """[n, M, V] logits of a forward that the cache is prepared for.

        Args:
            ids, positions: [n, T]
            asked: [M] nodes whose logits are wanted, at least one; `None` for all.
        """
        kept = {} if asked is None or not self.slices_logits else {"logits_to_keep": asked}
        with self.experts_for(ids.numel()):
            logits: torch.Tensor = self.model(
                input_ids=ids,
                position_ids=positions,
                attention_mask=masks,
                past_key_values=self.cache,
                use_cache=True,
                return_dict=True,
                **kept,
            ).logits
        return logits if asked is None or self.slices_logits else logits[:, asked]

    def discard(self, slots: Sequence[int]) -> None:
        """Clear the keys and values that the last forward wrote in these slots, since a masked NaN spreads."""
        self.cache.discard(slots)

    def experts_for(self, tokens: int) -> contextlib.AbstractContextManager[Any]:
        """The decode kernels of transformers for experts, for one token: they copy weights per token. Not on CPUs."""
        optimize = getattr(self.model, "_optimize_model_for_decode", None)
        if optimize is None or tokens > 1 or self.device.type == "cpu":
            return contextlib.nullcontext()
        return optimize()

    def keep(self, slots: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        """Keep one path in each slot of the last forward, and drop all other nodes."""
        self.cache.keep(slots, paths)
        for slot, path in zip(slots, paths, strict=True):
            self.positions[slot] += len(path)

    def export(self, stock: DynamicCache) -> None:
        """Write the slots into a cache of transformers, in their order."""
        self.cache.export(stock, sorted(self.positions))
