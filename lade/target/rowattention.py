"""Attention of packed forwards: the rows' nodes lie behind one another, and each row attends to its own slab.

Knows the arguments of transformers' attention functions, no model.

T nodes of all rows, t of one; H heads of keys and values, each for G query heads; K keys of one row; D head size.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from lade.target.masks import Mask
from lade.target.uniform import Uniform

LARGEST_HEAD = 256  # up to which the fast kernels know groups of query heads
OTHER_SHAPE, OTHER_SCORES = "the model changes the shape of its queries or keys", "the model changes its scores"
SHORTEST = 2  # keys of the first kind's stand-in mask, so that none fits every number of keys by broadcasting


@dataclass(eq=False)
class PackedKind:
    """What the layers of one mask kind attend to in a packed forward.

    Attributes:
        kv_length: tokens of the flat keys and values that its layers see.
        spans: per row, where its keys begin and end in them.
        masks: per row, [t, K].
        uniform: all rows as one call, where that is possible.
    """

    kv_length: int
    spans: Sequence[tuple[int, int]]
    masks: Sequence[Mask]
    uniform: Uniform | None = None
    _folded: dict[tuple[object, ...], Sequence[Mask]] = field(default_factory=dict, init=False)
    _hides: bool = field(init=False)
    _cuts: Cuts | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._hides = any(mask is not None for mask in self.masks)

    def folded(self, group: int, like: torch.Tensor) -> Sequence[Mask]:
        """Per row [1, 1, t * G, K], made once per forward, for queries of this type and device."""
        if not self._hides:
            return self.masks
        key = (group, like.dtype, like.device)
        if key not in self._folded:
            self._folded[key] = [_folded(mask, group, like) for mask in self.masks]
        return self._folded[key]

    def rows_of(self, states: torch.Tensor) -> Sequence[torch.Tensor]:
        """Per row [1, H, K, D], of the keys or values of all."""
        if self._cuts is None:
            self._cuts = Cuts.at(self.spans, self.kv_length)
        return self._cuts.parts(states)


def _folded(mask: Mask, group: int, like: torch.Tensor) -> Mask:
    return None if mask is None else mask.to(like).repeat_interleave(group, 0)[None, None]


@dataclass(frozen=True, slots=True)
class Cuts:
    """Where all tokens are cut in one call, so that some spans of them are parts of their own.

    Attributes:
        sizes: of the parts, which together are all tokens.
        wanted: which part each span is; `None` if the parts are the spans.
    """

    sizes: list[int]
    wanted: list[int] | None

    @classmethod
    def at(cls, spans: Sequence[tuple[int, int]], length: int) -> Cuts:
        """Cut `length` tokens at spans that do not overlap."""
        sizes, wanted, done = list[int](), [0] * len(spans), 0
        for row in sorted(range(len(spans)), key=spans.__getitem__):
            begin, end = spans[row]
            if begin > done:
                sizes.append(begin - done)
            wanted[row], done = len(sizes), end
            sizes.append(end - begin)
        if done < length:
            sizes.append(length - done)
        return cls(sizes, None if wanted == list(range(len(sizes))) else wanted)

    def parts(self, states: torch.Tensor) -> Sequence[torch.Tensor]:
        """Views of each span's tokens of [1, H, length, D]."""
        found = states.split_with_sizes(self.sizes, 2)
        return found if self.wanted is None else [found[part] for part in self.wanted]


@dataclass(eq=False)
class PackedForward:
    """The rows of a packed forward.

    Attributes:
        spans: per row, its first node and the end of its nodes.
        kinds: in the order of `stand_ins`.
    """

    spans: Sequence[tuple[int, int]]
    kinds: Sequence[PackedKind]
    _known: dict[int, tuple[torch.Tensor | None, PackedKind]] = field(default_factory=dict, init=False)  # by mask's id

    @property
    def rows(self) -> int:
        return len(self.spans)

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        **others: Any,
    ) -> tuple[torch.Tensor, None]:
        """What `sdpa_attention_forward` returns for one layer: [1, T, G * H, D].

        Args:
            query: [1, G * H, T, D]
            key, value: [1, H, kv_length, D]
            mask: a stand-in that only shows the layer's kind.

        Raises:
            NotImplementedError: the model's code did something to its arguments that this cannot follow.
        """
        known = self._known.get(id(mask))
        kind = self._kind(mask) if known is None else known[1]
        rows, heads, tokens, _ = query.shape
        if rows != 1 or tokens != self.spans[-1][1] or key.shape[2] != kind.kv_length:
            raise NotImplementedError(OTHER_SHAPE)
        if others.get("position_bias") is not None or others.get("softcap") is not None:
            raise NotImplementedError(OTHER_SCORES)
        if kind.uniform is not None:
            return kind.uniform.attend(query, key, value, dropout, scaling), None
        group = heads // key.shape[1]
        queries = _fold(query, group).split_with_sizes([group * (end - first) for first, end in self.spans], 2)
        found = [
            scaled_dot_product_attention(*row, dropout, scale=scaling)
            for row in zip(queries, kind.rows_of(key), kind.rows_of(value), kind.folded(group, query), strict=True)
        ]
        return _unfold(found[0] if len(found) == 1 else torch.cat(found, 2), group), None

    def _kind(self, mask: torch.Tensor | None) -> PackedKind:
        """What a layer with this mask attends to. Layers share masks, so each is looked at once."""
        kind = self.kinds[_index(mask, self.spans[-1][1], len(self.kinds))]
        self._known[id(mask)] = mask, kind  # with the mask, whose id is not used again meanwhile
        return kind


class RootForward:
    """A forward of one node that needs no mask. Takes a fraction of the host's time of a `PackedForward`.

    Args:
        kinds: in the order of `stand_ins`, where the node's keys begin and end.
    """

    __slots__ = ("kinds",)
    rows = 1

    def __init__(self, kinds: Sequence[tuple[int, int]]) -> None:
        self.kinds = kinds

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        position_bias: object = None,
        softcap: object = None,
        **others: Any,
    ) -> tuple[torch.Tensor, None]:
        """As `PackedForward.attend`, with T = 1."""
        begin, end = self.kinds[_index(mask, 1, len(self.kinds))]
        rows, heads, nodes, _ = query.shape
        if rows != 1 or nodes != 1 or key.shape[2] != end:
            raise NotImplementedError(OTHER_SHAPE)
        if position_bias is not None or softcap is not None:
            raise NotImplementedError(OTHER_SCORES)
        keys, values, group = _part(key, begin, end), _part(value, begin, end), heads // key.shape[1]
        if query.shape[3] == value.shape[3] <= LARGEST_HEAD:  # as in plain decoding
            output = scaled_dot_product_attention(
                query, keys, values, None, dropout, scale=scaling, enable_gqa=group > 1
            )
            return output.transpose(1, 2), None
        output = scaled_dot_product_attention(_fold(query, group), keys, values, None, dropout, scale=scaling)
        return _unfold(output, group), None


def _index(mask: torch.Tensor | None, nodes: int, kinds: int) -> int:
    """The kind that a stand-in stands for."""
    if mask is not None:
        *alike, length = mask.shape
        if alike == [1, 1, nodes] and 0 <= length - SHORTEST < kinds:
            return length - SHORTEST
    raise NotImplementedError("the model changes its masks")


def _part(states: torch.Tensor, first: int, end: int) -> torch.Tensor:
    """Some tokens of [1, H, K, D]."""
    return states if states.shape[2] == end - first else states.narrow(2, first, end - first)


def _fold(query: torch.Tensor, group: int) -> torch.Tensor:
    """[1, H, T * G, D] from [1, G * H, T, D]."""
    if group == 1:
        return query
    _, heads, nodes, size = query.shape
    return query.view(1, heads // group, group, nodes, size).transpose(2, 3).reshape(1, -1, nodes * group, size)


def _unfold(output: torch.Tensor, group: int) -> torch.Tensor:
    """[1, T, G * H, D] from [1, H, T * G, D], contiguous, since some models take views of it."""
    _, shared, folded, size = output.shape
    heads = output.view(1, shared, folded // group, group, size).permute(0, 2, 1, 3, 4)
    return heads.reshape(1, folded // group, -1, size).contiguous()


@functools.lru_cache(maxsize=256)
def stand_in(kind: int, tokens: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """[1, 1, T, 2 + kind]: the mask that the model passes to its layers; any other use of it gives NaN or an error."""
    return torch.full((1, 1, 1, 1), torch.nan, dtype=dtype, device=device).expand(1, 1, tokens, SHORTEST + kind)
