"""Ways of computing one layer's attention in a packed forward; `lade.target.choice` picks one.

A way is an object with a name, `fits` and `attend`. Knows the rows of packed forwards, no model.

T nodes of all rows, t of one; H heads of keys and values, each for G query heads; D head size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch.nn.functional import scaled_dot_product_attention

from lade.kernels.rows import Rules, scale_of
from lade.target.definition import attend
from lade.target.folding import fold, fold_heads, unfold
from lade.target.masks import RowMask
from lade.target.partial import Kernels, merged, with_sinks

if TYPE_CHECKING:
    from lade.target.rowattention import PackedKind

SHORTEST_PREFIX = 512  # keys of every row from which on a prefix is split off; below, the second call costs more


@dataclass(eq=False, slots=True)
class Call:
    """One layer's attention in a packed forward.

    Attributes:
        kind: what its rows see.
        query: [1, G * H, T, D]
        key, value: [1, H, kv_length, D]
        dropout: probability; 0 outside of training.
        scaling: of the scores; `None` for D ** -0.5.
        cap: of the scores; `None` for none.
        sinks: [G * H] scores of keys without a value; `None` for none.
    """

    kind: PackedKind
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    dropout: float = 0.0
    scaling: float | None = None
    cap: float | None = None
    sinks: torch.Tensor | None = None

    @property
    def plain(self) -> bool:
        """Whether PyTorch's attention knows its scores."""
        return self.cap is None and self.sinks is None

    def rules(self, window: int | None = None, chunk: int | None = None) -> Rules:
        """As the kernels take them; where masks tell windows and chunks, without these."""
        return Rules(scale_of(self.query, self.scaling), window, chunk, self.cap, self.sinks)

    @property
    def group(self) -> int:
        """G"""
        return self.query.shape[1] // self.key.shape[1]

    def queries(self) -> tuple[torch.Tensor, ...]:
        """Per row [1, H, t * G, D]."""
        folded, group = fold(self.query, self.group), self.group
        if len(self.kind.nodes) == 1:
            return (folded,)
        return folded.split_with_sizes([group * nodes for nodes in self.kind.nodes], 2)

    def joined(self, rows: list[torch.Tensor]) -> torch.Tensor:
        """[1, T, G * H, D] from each row's [1, H, t * G, D]."""
        return unfold(rows[0] if len(rows) == 1 else torch.cat(rows, 2), self.group)


class Way(Protocol):
    """One way of attention for the rows of a packed forward."""

    @property
    def name(self) -> str:
        """As in statistics."""

    def fits(self, call: Call) -> bool:
        """Whether it computes layers like this one."""

    def attend(self, call: Call) -> torch.Tensor:
        """[1, T, G * H, D]"""


class Masked:
    """PyTorch's attention, once per row, with a mask over all of its keys."""

    name = "masked"

    def fits(self, call: Call) -> bool:
        return call.plain and call.kind.uniform is None

    def attend(self, call: Call) -> torch.Tensor:
        kind, group = call.kind, call.group
        masks = [mask.folded(group, call.query) for mask in kind.masks]
        return call.joined(
            [
                scaled_dot_product_attention(*row, call.dropout, scale=call.scaling)
                for row in zip(call.queries(), kind.rows_of(call.key), kind.rows_of(call.value), masks, strict=True)
            ]
        )


class Defined:
    """Attention by its definition, once per row, with soft caps and sinks."""

    name = "defined"

    def fits(self, call: Call) -> bool:
        return not call.plain and not call.dropout

    def attend(self, call: Call) -> torch.Tensor:
        kind, group, rules = call.kind, call.group, call.rules()
        masks = [mask.folded(group, call.query) for mask in kind.masks]
        rows = zip(call.queries(), kind.rows_of(call.key), kind.rows_of(call.value), masks, strict=True)
        return call.joined([attend(*row, rules, group) for row in rows])


class Together:
    """PyTorch's attention, once for all rows."""

    name = "together"

    def fits(self, call: Call) -> bool:
        return call.plain and call.kind.uniform is not None

    def attend(self, call: Call) -> torch.Tensor:
        assert call.kind.uniform is not None
        return call.kind.uniform.attend(call.query, call.key, call.value, call.dropout, call.scaling)


class Split:
    """Per row, the prefix that every node sees without a mask, the tree with one, merged by log-sum-exp.

    Args:
        kernels: that compute both.
        shortest: keys of the shortest prefix that is split off, at least 1.
    """

    def __init__(self, kernels: Kernels, shortest: int) -> None:
        self.kernels, self.shortest = kernels, shortest

    @property
    def name(self) -> str:
        return self.kernels.name

    def fits(self, call: Call) -> bool:
        if call.dropout or call.cap is not None or call.kind.shortest_prefix < self.shortest:
            return False
        return self.kernels.takes(call.query, call.value)

    def attend(self, call: Call) -> torch.Tensor:
        kind = call.kind
        return call.joined(
            [
                self._row(call, query, span, mask)
                for query, span, mask in zip(call.queries(), kind.spans, kind.masks, strict=True)
            ]
        )

    def _row(self, call: Call, query: torch.Tensor, span: tuple[int, int], mask: RowMask) -> torch.Tensor:
        """[1, H, t * G, D]"""
        key, value, (begin, end) = call.key, call.value, span
        first, seen = begin + mask.seen, mask.prefix - mask.seen
        keys, values = (_outside(states, begin, first, seen, end) for states in (key, value))
        hidden = mask.folded(call.group, query, rest=True)
        rest = self.kernels.partial(query, keys, values, hidden, call.scaling)
        if call.sinks is not None:
            rest = with_sinks(rest, fold_heads(call.sinks, call.group, query.shape[2]))
        whole = self.kernels.partial(
            query, key.narrow(2, first, seen), value.narrow(2, first, seen), None, call.scaling
        )
        return merged(whole, rest)


def _outside(states: torch.Tensor, begin: int, first: int, seen: int, end: int) -> torch.Tensor:
    """Tokens from `begin` to `end` but for the `seen` ones from `first` on."""
    after = states.narrow(2, first + seen, end - first - seen)
    return after if begin == first else torch.cat([states.narrow(2, begin, first - begin), after], 2)
