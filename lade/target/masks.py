"""Additive attention masks of token trees, for eager and SDPA attention.

A node sees the cached tokens of its row that are not padding, its ancestors and itself; a layer with a sliding window
or with chunks sees of those only what lies in its window or chunk, by position in the row. Masks are built row by row
and step by step, from ancestor bits and depths that are on the device. Knows caches and trees, no model.

n rows, T nodes that see, C nodes that are seen (C = T, unless a tree grows over several forwards), K keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch

from lade.target.cache import TreeCache
from lade.target.store import LayerGroup
from lade.target.upload import Part

Mask = torch.Tensor | None  # `None` hides nothing


@dataclass(frozen=True, slots=True)
class MaskKind:
    """What a layer type sees: the last `window` tokens, the tokens of the same `chunk`, or all."""

    name: str
    window: int | None = None
    chunk: int | None = None


@dataclass(frozen=True, slots=True)
class Sight:
    """What the nodes of one row see of each other in a forward.

    Attributes:
        slot: of the row.
        visible: [T, C] bool, whether a node sees another one.
        depths: [C] distances from the root, on their way to the device; `None` for a chain.
        deepest: the largest of them.
        first: the first of the T nodes.
    """

    slot: int
    visible: torch.Tensor
    depths: Part | None
    deepest: int
    first: int = 0


class RowMask:
    """What the nodes of one row see of its K keys. A tensor is made when a way of attention asks for it.

    Args:
        make: the [T, n + C] mask of the first n keys of the prefix, and of the tree.
        prefix: keys before the tree.
        seen: the first key of the prefix from which on every node sees all of it; `prefix` if there is none.
        hides: whether any key is hidden from any node.
        tree: [T, C] bool, which nodes a node sees, where every node sees all of the prefix; else `None`.
    """

    def __init__(
        self,
        make: Callable[[int], torch.Tensor],
        prefix: int,
        seen: int,
        hides: bool = True,
        tree: torch.Tensor | None = None,
    ) -> None:
        self.prefix, self.seen, self.hides = prefix, seen, hides
        self._make, self._tree = make, tree
        self._made: dict[int, torch.Tensor] = {}
        self._folded: dict[tuple[object, ...], torch.Tensor] = {}

    @classmethod
    def of(cls, mask: Mask) -> RowMask:
        """Of a [T, K] mask that is made already."""
        return cls(lambda keys: cast("torch.Tensor", mask), 0, 0, mask is not None)

    def whole(self) -> Mask:
        """[T, K]"""
        return self._of(self.prefix) if self.hides else None

    def visible(self) -> torch.Tensor:
        """[T, seen + C] bool: whether a node sees a key that not every node is known to see."""
        return self._of(self.seen) == 0 if self._tree is None else self._tree

    def folded(self, group: int, like: torch.Tensor, rest: bool = False) -> Mask:
        """[1, 1, T * G, K] for groups of G query heads, of the type and device of `like`.

        Args:
            rest: only the keys that not every node is known to see: those before `seen`, and the tree.
        """
        if not self.hides:
            return None
        key = (rest, group, like.dtype, like.device)
        if key not in self._folded:
            mask = self._of(self.seen if rest else self.prefix)
            self._folded[key] = mask.to(like).repeat_interleave(group, 0)[None, None]
        return self._folded[key]

    def _of(self, keys: int) -> torch.Tensor:
        if keys not in self._made:
            self._made[keys] = self._make(keys)
        return self._made[keys]


def layer_kinds(config: object) -> dict[str, MaskKind] | MaskKind:
    """The masks that a model takes: one per layer type, or one, as transformers' `create_masks_for_generate`.

    Raises:
        ValueError: the configuration names a layer type without a known mask.
    """
    window = getattr(config, "sliding_window", None)
    chunk = getattr(config, "attention_chunk_size", None)
    known = {
        "full_attention": MaskKind("full_attention"),
        "sliding_attention": MaskKind("sliding_attention", window=window),
        "chunked_attention": MaskKind("chunked_attention", chunk=chunk),
    }
    if hasattr(config, "layer_types"):
        unknown = sorted(set(config.layer_types) - set(known))
        if unknown:
            raise ValueError(f"layers of type {', '.join(unknown)} have no tree mask")
        return {name: known[name] for name in dict.fromkeys(config.layer_types)}
    if window is not None:
        return known["sliding_attention"]
    return known["chunked_attention"] if chunk is not None else known["full_attention"]


class TreeMasks:
    """Builds the masks of a target's forwards.

    Args:
        kinds: `layer_kinds` of the model.
        always: whether the model needs a mask even where it hides nothing, as eager attention does.

    Attributes:
        each_kind: the kinds, in their order.
        first: index of each slot's first token that is not padding.
        real: [P] bool, where a slot's prompt has a token, if padding stands between tokens.
    """

    def __init__(
        self,
        kinds: dict[str, MaskKind] | MaskKind,
        cache: TreeCache,
        dtype: torch.dtype,
        device: torch.device,
        always: bool = False,
    ) -> None:
        self.kinds = kinds
        self.always = always
        self.cache = cache
        self.zero = torch.zeros((), dtype=dtype, device=device)
        lowest = max(torch.finfo(dtype).min, torch.finfo(torch.float32).min)  # eager softmax works in float32
        self.lowest = torch.full((), lowest, dtype=dtype, device=device)
        self.each_kind = list(kinds.values()) if isinstance(kinds, dict) else [kinds]
        self._groups = {
            kind.name: cache.group(sliding=kind.window is not None or kind.chunk is not None) for kind in self.each_kind
        }
        self.first: dict[int, int] = {}
        self.real: dict[int, torch.Tensor] = {}

    def open(self, slots: Sequence[int], padding: torch.Tensor | None = None) -> None:
        """Begin new slots; `padding`: [n, P] bool, True where their prompts have a token."""
        self.first |= dict.fromkeys(slots, 0)
        if padding is None:
            return
        for slot, row, firsts in zip(slots, padding, (padding.cumsum(-1) == 0).sum(-1).tolist(), strict=True):
            self.first[slot] = firsts
            if not bool(row[firsts:].all()):
                self.real[slot] = row.to(self.zero.device, torch.bool, copy=True)

    def close(self, slot: int) -> None:
        self.first.pop(slot, None)
        self.real.pop(slot, None)

    def group(self, kind: MaskKind) -> LayerGroup:
        return self._groups[kind.name]

    def padded(self, sights: Sequence[Sight]) -> Mask | dict[str, Mask]:
        """[n, 1, T, K] masks of a padded forward that the cache is prepared for, in the form that the model takes."""
        built: dict[tuple[object, ...], Mask] = {}  # kinds that see alike share a mask
        masks = {}
        for kind in self.each_kind:
            group = self.group(kind)
            limited = any(self._limited(kind, group, sight, 0) for sight in sights)
            alike = (kind if limited else None, group.kv_length, *(group.starts[sight.slot] for sight in sights))
            if alike not in built:
                built[alike] = self._padded(kind, group, sights, limited)
            masks[kind.name] = built[alike]
        return self.as_taken(masks)

    def as_taken(self, masks: dict[str, Mask]) -> Mask | dict[str, Mask]:
        """Masks by the kind's name in the form that the model takes."""
        return masks if isinstance(self.kinds, dict) else masks[self.kinds.name]

    def _padded(self, kind: MaskKind, group: LayerGroup, sights: Sequence[Sight], limited: bool) -> Mask:
        nodes, columns = sights[0].visible.shape
        if nodes == columns == len(sights) == 1 and not limited and not self.always:
            slot = sights[0].slot
            if slot not in self.real and not self.first[slot] and not group.starts[slot]:
                return None  # one token sees all, as in plain decoding: attention without a mask is faster
        masks = self.lowest.repeat(len(sights), 1, nodes, group.kv_length)
        for mask, sight in zip(masks[:, 0], sights, strict=True):
            held = group.held(sight.slot)
            mask[:, : held + columns] = self._row(kind, group, sight, 0, held)
        return masks

    def row(self, kind: MaskKind, sight: Sight, lowest_key: int) -> RowMask:
        """What the nodes of one row see, from a key index of its slab on."""
        group, slot = self.group(kind), sight.slot
        oldest, prefix = group.starts[slot] + lowest_key, group.held(slot) - lowest_key
        limited = self._limited(kind, group, sight, lowest_key)
        padded = slot in self.real or self.first[slot] > oldest
        seen = prefix if padded or (limited and kind.window is None) else 0
        if limited and kind.window is not None and not padded:
            newest = group.lengths[slot] + sight.deepest
            seen = min(newest - kind.window + 1 - oldest, prefix)
        hides = sight.visible.numel() > 1 or limited or padded
        tree = None if limited or padded else sight.visible
        return RowMask(lambda keys: self._row(kind, group, sight, lowest_key, keys), prefix, seen, hides, tree)

    def lowest_key(self, kind: MaskKind, slot: int) -> int:
        """Index in the slab of the first key that any node sees: after left padding, in the root's window or chunk."""
        group = self.group(kind)
        length, oldest = group.lengths[slot], self.first[slot]
        if kind.window is not None:
            oldest = max(oldest, length - kind.window + 1)
        if kind.chunk is not None:
            oldest += (length - oldest) // kind.chunk * kind.chunk
        return max(0, min(oldest, length) - group.starts[slot])

    def limits(self, kind: MaskKind, sight: Sight, lowest_key: int) -> MaskKind | None:
        """The kind, if its window or chunk hides from a node what its row holds from a key on; else `None`."""
        return kind if self._limited(kind, self.group(kind), sight, lowest_key) else None

    def _limited(self, kind: MaskKind, group: LayerGroup, sight: Sight, lowest_key: int) -> bool:
        """Whether the deepest node does not see all that its row holds from a key on."""
        oldest = group.starts[sight.slot] + lowest_key
        newest = group.lengths[sight.slot] + sight.deepest
        if kind.window is not None:
            return newest - oldest >= kind.window
        if kind.chunk is not None:
            first = self.first[sight.slot]
            return (newest - first) // kind.chunk != (oldest - first) // kind.chunk
        return False

    def _row(self, kind: MaskKind, group: LayerGroup, sight: Sight, lowest_key: int, held: int) -> torch.Tensor:
        """[T, held + C] from the definition, of the first `held` keys from `lowest_key` on, and of the tree."""
        nodes, columns = sight.visible.shape
        slot = sight.slot
        mask = self.zero.new_zeros(nodes, held + columns)
        mask[:, held:] = torch.where(sight.visible, self.zero, self.lowest)
        oldest = group.starts[slot] + lowest_key
        if slot in self.real:
            real = self.real[slot][oldest : oldest + held]
            mask[:, : len(real)] = torch.where(real, self.zero, self.lowest)
        elif self.first[slot] > oldest:
            mask[:, : min(self.first[slot] - oldest, held)] = self.lowest
        if self._limited(kind, group, sight, lowest_key):
            mask.masked_fill_(self._out_of_reach(kind, group, sight, oldest, held), self.lowest)
        return mask

    def _out_of_reach(self, kind: MaskKind, group: LayerGroup, sight: Sight, oldest: int, held: int) -> torch.Tensor:
        """[T, held + C] bool: what lies outside a node's window or chunk."""
        length, (nodes, columns) = group.lengths[sight.slot], sight.visible.shape
        in_tree = torch.arange(columns, device=self.zero.device) if sight.depths is None else sight.depths.there
        in_tree = in_tree + length
        before = torch.arange(oldest, oldest + held, device=in_tree.device)
        keys, own = torch.cat([before, in_tree]), in_tree[sight.first : sight.first + nodes, None]
        if kind.window is not None:
            return own - keys >= kind.window
        assert kind.chunk is not None
        first = self.first[sight.slot]
        return (own - first) // kind.chunk != (keys - first) // kind.chunk
