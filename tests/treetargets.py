"""Targets with prompts of any lengths, random trees for them, and what each node's logits must be: its path's alone."""

from typing import Any

import pytest
import torch
from families import PAD, VOCAB, WINDOW
from hypothesis import strategies as st
from tiny import words
from torch import Tensor
from transformers import DynamicCache, GenerationConfig, PreTrainedModel

from lade.core.stats import Clock
from lade.core.tree import Draft, TreeBuilder, chain
from lade.target import model as target_model
from lade.target.cache import TreeCache
from lade.target.choice import Ways
from lade.target.fused import linear
from lade.target.looped import Looped
from lade.target.masks import layer_kinds
from lade.target.model import HFTarget


def empty_target(
    model: PreTrainedModel, packed: bool, position_limit: int | None = None, fused: bool = False
) -> HFTarget:
    cache = TreeCache(DynamicCache(config=model.config), model.config)
    return HFTarget(model, cache, layer_kinds(model.config), position_limit, Clock(), packed=packed, fused=fused)


def target_of(
    model: PreTrainedModel,
    lengths: tuple[int, ...],
    position_limit: int | None = None,
    packed: bool = True,
    fused: bool = False,
) -> HFTarget:
    """Rows of these lengths, prefilled."""
    batch, target = words(*lengths), empty_target(model, packed, position_limit, fused)
    positions = (batch["attention_mask"].cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad():
        inputs = {"attention_mask": batch["attention_mask"], "position_ids": positions, "use_cache": True}
        target.prefill(batch["input_ids"], GenerationConfig(), inputs)
    return target


def only_loops(patch: pytest.MonkeyPatch) -> None:
    """Loops compute attention and products of fused layers, whatever is faster or tried."""
    patch.setattr(target_model, "ways_of", lambda *args: Ways((Looped(),)))
    patch.setattr(linear, "are_faster", lambda *args, **kwargs: True)


def alone(model: PreTrainedModel, tokens: list[int]) -> Tensor:
    """[V] logits after a text, in one forward without a cache."""
    return model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1]


def path_of(draft: Draft, node: int) -> list[int]:
    return [0] if node == 0 else [*path_of(draft, draft.parents[node]), node]


def along_paths(model: PreTrainedModel, text: list[int], draft: Draft) -> dict[int, Tensor]:
    """[V] logits after every queried node: the text with each whole path, in one forward without a cache."""
    expected: dict[int, Tensor] = {}
    paths = [path_of(draft, leaf) for leaf in set(range(len(draft))) - set(draft.parents[1:])]
    paths = [path for path in paths if set(draft.queries) & set(path)]
    if paths:  # side by side: what fills up the shorter ones stands behind them, where nothing of theirs sees it
        longest = max(map(len, paths))
        texts = [text + [draft.tokens[node] for node in path] + [PAD] * (longest - len(path)) for path in paths]
        for path, logits in zip(paths, model(input_ids=torch.tensor(texts), use_cache=False).logits, strict=True):
            expected |= zip(path, logits[len(text) : len(text) + len(path)], strict=True)
    return {node: expected[node] for node in draft.queries}


def some_slots(slots: int) -> st.SearchStrategy[list[int]]:
    """Some of the slots, in any order."""
    return st.lists(st.integers(0, slots - 1), min_size=1, unique=True)


def random_draft(data: st.DataObject, root: int) -> Draft:
    builder = TreeBuilder(root)
    for _ in range(data.draw(st.integers(0, 4))):
        start = data.draw(st.integers(0, len(builder.tokens) - 1))
        tokens = data.draw(st.lists(st.integers(3, VOCAB - 1), min_size=1, max_size=3))
        builder.add_path(start, tokens, "test", query=data.draw(st.booleans()))
    return builder.build()


class Reading:
    """Slots that open, read their texts in chunks, decode drafts and close, in any order and mixture."""

    def __init__(self, model: PreTrainedModel, packed: bool, tolerance: float, fused: bool = False) -> None:
        self.model, self.tolerance = model, tolerance
        self.target = empty_target(model, packed, fused=fused)
        self.texts: dict[int, list[int]] = {}
        self.unread: dict[int, list[int]] = {}

    def open(self, slot: int, prompt: list[int], most: int | None) -> None:
        self.target.open(slot, len(prompt), most)
        self.texts[slot], self.unread[slot] = [], prompt

    def close(self, slot: int) -> None:
        self.target.close(slot)
        del self.texts[slot], self.unread[slot]

    def run(self, data: st.DataObject) -> None:
        for step in range(data.draw(st.integers(1, 12))):
            if not self.texts or (len(self.texts) < 4 and data.draw(st.booleans())):
                prompt = data.draw(st.lists(st.integers(3, VOCAB - 1), min_size=1, max_size=4 * WINDOW))
                self.open(step, prompt, data.draw(st.none() | st.integers(1, 60)))
            if len(self.texts) > 1 and data.draw(st.integers(0, 4)) == 0:
                self.close(data.draw(st.sampled_from(sorted(self.texts))))
            self.step(data)

    def step(self, data: st.DataObject) -> None:
        slots = data.draw(st.lists(st.sampled_from(sorted(self.texts)), min_size=1, unique=True))
        if not self.target.packed:  # a chunk alone, or drafts
            slots = slots[:1] if self.unread[slots[0]] else [slot for slot in slots if not self.unread[slot]]
        drafts = [self._chunk(data, slot) if self.unread[slot] else random_draft(data, 3 + slot) for slot in slots]
        outputs = self.target.forward(slots, drafts)
        paths = []
        for row, (slot, draft) in enumerate(zip(slots, drafts, strict=True)):
            self._check(outputs, row, slot, draft)
            reads = bool(self.unread[slot])
            self.unread[slot] = self.unread[slot][len(draft) :] if reads else []
            paths.append(path_of(draft, len(draft) - 1 if reads else data.draw(st.integers(0, len(draft) - 1))))
            self.texts[slot] += [draft.tokens[node] for node in paths[-1]]
        self.target.keep(slots, paths)

    def _chunk(self, data: st.DataObject, slot: int) -> Draft:
        tokens = self.unread[slot][: data.draw(st.integers(1, 12))]
        return chain(tokens, asked=data.draw(st.booleans()))

    def _check(self, outputs: Any, row: int, slot: int, draft: Draft) -> None:
        assert set(draft.queries) <= set(outputs.lines[row])
        for node, expected in along_paths(self.model, self.texts[slot], draft).items():
            assert torch.allclose(outputs.at(row, node)[0], expected, atol=self.tolerance, rtol=0)
