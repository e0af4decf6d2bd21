"""The formula that kernels are compared with, beside FlexAttention: masks as functions, scores with a soft cap."""

from dataclasses import replace
from random import Random

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from treerows import Case, random_case

from lade.kernels.rows import CHAIN, WORD, Row, Rules


def sees(row: Row, integers: list[int], rules: Rules, node: int, place: int) -> bool:
    """Whether a row's node sees one of its keys."""

    def position(index: int) -> int:
        after = index - row.held
        return row.origin + (index if after < 0 or row.tree == CHAIN else row.held + integers[row.tree + after])

    own = row.columns - row.nodes + node
    distance = position(row.held + own) - position(place)
    if row.tree == CHAIN or place < row.held:
        known = place <= row.held + own
    else:
        words, after = -(-row.columns // WORD), place - row.held
        known = bool(integers[row.tree + row.columns + node * words + after // WORD] >> after % WORD & 1)
    near = rules.window is None or distance < rules.window
    together = rules.chunk is None or position(row.held + own) // rules.chunk == position(place) // rules.chunk
    return known and near and together and position(place) >= 0


def flexed(case: Case) -> torch.Tensor:
    """[T, heads, E], one call per row, in float64."""
    query, key, value = (states.double() for states in (case.query, case.key, case.value))
    found = torch.zeros(query.shape[1], query.shape[0], value.shape[2], dtype=torch.float64)
    cap = case.rules.cap

    def capped(score, batch, head, node, place):  # type: ignore[no-untyped-def]
        return score if cap is None else cap * torch.tanh(score / cap)

    for first, nodes, keys, held, origin, done, columns, tree in case.rows.table.tolist():
        row = Row(first, nodes, keys, held, origin, done + nodes, tree)
        integers, places = case.rows.integers.tolist(), range(held + columns)
        seen = torch.tensor([[sees(row, integers, case.rules, node, at) for at in places] for node in range(nodes)])

        def visible(batch, head, node, place, seen=seen):  # type: ignore[no-untyped-def]
            return seen[node, place]

        blocks = create_block_mask(visible, None, None, nodes, held + columns, device="cpu")
        parts = (
            query[None, :, first : first + nodes],
            *(s[None, :, keys : keys + held + columns] for s in (key, value)),
        )
        whole = flex_attention(*parts, capped, blocks, scale=case.rules.scale, enable_gqa=True)
        found[first : first + nodes] = whole[0].transpose(0, 1)
    return found


@pytest.mark.real
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("seed", range(6))
def test_the_formula_is_flex_attentions(seed: int) -> None:
    case = random_case(Random(seed), torch.float32, plain=True)
    case = replace(case, rules=replace(case.rules, cap=(None, 0.7)[seed % 2]))
    torch.testing.assert_close(flexed(case), case.exact(), rtol=0, atol=1e-10)
