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

from lade.kernels.rows import Rules, scale_of
from lade.target.choice import Choice, Ways, attend, choice_for
from lade.target.definition import dense
from lade.target.folding import fold, unfold
from lade.target.launches import Launch
from lade.target.looped import RowTable
from lade.target.masks import RowMask
from lade.target.uniform import Uniform
from lade.target.ways import Call, Way

LARGEST_HEAD = 256  # up to which the fast kernels know groups of query heads
SLOW_ALONE = torch.bfloat16  # on a CPU torch takes up to ten times longer for a head's one query than for two
OTHER_SHAPE, OTHER_SCORES = "the model changes the shape of its queries or keys", "the model changes its scores"
SHORTEST = 2  # keys of the first kind's stand-in mask, so that none fits every number of keys by broadcasting


@dataclass(eq=False)
class PackedKind:
    """What the layers of one mask kind attend to in a packed forward.

    Attributes:
        kv_length: tokens of the flat keys and values that its layers see.
        spans: per row, where its keys begin and end in them.
        masks: per row.
        nodes: per row, t.
        uniform: all rows as one call, where that is possible.
        launch: all rows as one launch of the kernel, where that runs.
    """

    kv_length: int
    spans: Sequence[tuple[int, int]]
    masks: Sequence[RowMask]
    nodes: Sequence[int]
    uniform: Uniform | None = None
    launch: Launch | None = None
    _cuts: Cuts | None = field(default=None, init=False)
    _table: RowTable | None = field(default=None, init=False)
    _chosen: tuple[tuple[object, ...], Choice[Way]] | None = field(default=None, init=False)

    @property
    def shortest_prefix(self) -> int:
        """Keys that every node of a row sees, in the row with the fewest."""
        return min(mask.prefix - mask.seen for mask in self.masks)

    def choice(self, ways: Ways, call: Call) -> Choice[Way]:
        """Of the ways for such a layer."""
        shapes = call.query.shape, call.key.shape, call.cap is None, call.sinks is None
        if self._chosen is None or self._chosen[0] != shapes:
            self._chosen = shapes, choice_for(ways, call)
        return self._chosen[1]

    @property
    def table(self) -> RowTable:
        """What the loop reads of the rows."""
        if self._table is None:
            self._table = RowTable.of(self.spans, self.masks, self.nodes)
        return self._table

    def rows_of(self, states: torch.Tensor) -> Sequence[torch.Tensor]:
        """Per row [1, H, K, D], of the keys or values of all."""
        if self._cuts is None:
            self._cuts = Cuts.at(self.spans, self.kv_length)
        return self._cuts.parts(states)


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
        ways: that attention may be computed in.
        used: names of those that were.
    """

    spans: Sequence[tuple[int, int]]
    kinds: Sequence[PackedKind]
    ways: Ways
    used: set[str] = field(default_factory=set, init=False)
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
        softcap: float | None = None,
        s_aux: torch.Tensor | None = None,
        position_bias: object = None,
        **others: Any,
    ) -> tuple[torch.Tensor, None]:
        """What transformers' attention functions return for one layer: [1, T, G * H, D].

        Args:
            query: [1, G * H, T, D]
            key, value: [1, H, kv_length, D]
            mask: a stand-in that only shows the layer's kind.

        Raises:
            NotImplementedError: the model's code did something to its arguments that this cannot follow.
        """
        known = self._known.get(id(mask))
        kind = self._kind(mask) if known is None else known[1]
        rows, _, tokens, _ = query.shape
        if rows != 1 or tokens != self.spans[-1][1] or key.shape[2] != kind.kv_length:
            raise NotImplementedError(OTHER_SHAPE)
        if position_bias is not None:
            raise NotImplementedError(OTHER_SCORES)
        call = Call(kind, query, key, value, dropout, scaling, softcap, s_aux)
        found, way = attend(kind.choice(self.ways, call), call)
        self.used.add(way)
        return found, None

    def choice(self, index: int, call: Call) -> Choice[Way]:
        """Of the ways for layers of a kind."""
        return self.kinds[index].choice(self.ways, call)

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
        softcap: float | None = None,
        s_aux: torch.Tensor | None = None,
        position_bias: object = None,
        **others: Any,
    ) -> tuple[torch.Tensor, None]:
        """As `PackedForward.attend`, with T = 1."""
        begin, end = self.kinds[_index(mask, 1, len(self.kinds))]
        rows, _, nodes, _ = query.shape
        if rows != 1 or nodes != 1 or key.shape[2] != end:
            raise NotImplementedError(OTHER_SHAPE)
        if position_bias is not None:
            raise NotImplementedError(OTHER_SCORES)
        keys, values = _part(key, begin, end), _part(value, begin, end)
        if softcap is not None or s_aux is not None:
            rules = Rules(scale_of(query, scaling), cap=softcap, sinks=s_aux)
            return dense(query, keys, values, None, rules), None
        return _attend_one(query, keys, values, dropout, scaling), None


def _attend_one(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout: float, scaling: float | None
) -> torch.Tensor:
    """[1, 1, G * H, D] of one node, which sees all keys."""
    group = query.shape[1] // key.shape[1]
    slow = query.dtype is SLOW_ALONE and query.device.type == "cpu"
    if not slow and query.shape[3] == value.shape[3] <= LARGEST_HEAD:  # as in plain decoding
        output = scaled_dot_product_attention(query, key, value, None, dropout, scale=scaling, enable_gqa=group > 1)
        return output.transpose(1, 2)
    folded = fold(query, group)
    if slow and group == 1:
        folded = folded.expand(-1, -1, 2, -1)
    output = scaled_dot_product_attention(folded, key, value, None, dropout, scale=scaling)
    return unfold(output[:, :, :group], group)


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


@functools.lru_cache(maxsize=256)
def stand_in(kind: int, tokens: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """[1, 1, T, 2 + kind]: the mask that the model passes to its layers; any other use of it gives NaN or an error."""
    return torch.full((1, 1, 1, 1), torch.nan, dtype=dtype, device=device).expand(1, 1, tokens, SHORTEST + kind)
