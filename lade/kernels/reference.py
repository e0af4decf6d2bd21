"""The law of the kernels: attention of token trees in plain torch, row by row, in the queries' type or a wider one."""

from __future__ import annotations

import torch

from lade.kernels.rows import CHAIN, WORD, Row, Rows, Rules


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    rows: Rows,
    rules: Rules,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """[T, heads, E] attention, as `lade.kernels.launch.attend`; zero for queries of no row.

    Args:
        dtype: to compute in; `None` for the queries' own.
    """
    wide = dtype or query.dtype
    out = query.new_zeros(query.shape[1], query.shape[0], value.shape[2], dtype=wide)
    group = query.shape[0] // key.shape[0]
    for first, nodes, keys, held, origin, done, columns, tree in rows.table.tolist():
        row = Row(first, nodes, keys, held, origin, done + nodes, tree)
        assert columns == row.columns
        spans = slice(first, first + nodes), slice(keys, keys + held + columns)
        k, v = (states[:, spans[1]].to(wide).repeat_interleave(group, 0) for states in (key, value))
        scores = query[:, spans[0]].to(wide) @ k.transpose(1, 2) * rules.scale
        if rules.cap is not None:
            scores = torch.tanh(scores / rules.cap) * rules.cap
        scores = scores.masked_fill(~visible(row, rows.integers, rules), -torch.inf)
        out[spans[0]] = (_softmax(scores, rules.sinks) @ v).transpose(0, 1)
    return out


def _softmax(scores: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    if sinks is None:
        return scores.softmax(-1)
    sink = sinks.to(scores.dtype)[:, None, None].expand(-1, scores.shape[1], 1)
    return torch.cat([scores, sink], -1).softmax(-1)[..., :-1]


def visible(row: Row, integers: torch.Tensor, rules: Rules) -> torch.Tensor:
    """[t, held + C] bool: which keys of its own a row's nodes see."""
    ancestors, depths = _tree(row, integers)
    before = torch.arange(row.held, device=integers.device)
    positions = torch.cat([before, row.held + depths]) + row.origin
    own = positions[-row.nodes :, None]
    seen = torch.cat([torch.ones(row.nodes, row.held, dtype=torch.bool, device=integers.device), ancestors], 1)
    seen &= positions >= 0
    if rules.window is not None:
        seen &= own - positions < rules.window
    if rules.chunk is not None:
        seen &= own // rules.chunk == positions // rules.chunk
    return seen


def _tree(row: Row, integers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[t, C] bool, which nodes see which, and [C] depths."""
    nodes, columns = row.nodes, row.columns
    places = torch.arange(columns, device=integers.device)
    if row.tree == CHAIN:
        return places <= places[columns - nodes :, None], places
    depths, words = integers[row.tree : row.tree + columns], integers[row.tree + columns :]
    words = words[: nodes * -(-columns // WORD)].view(nodes, -1)
    return (words[:, places // WORD] >> places % WORD & 1).bool(), depths
