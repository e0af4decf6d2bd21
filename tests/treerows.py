"""Random rows for the kernels: unequal trees and chains, of unequal lengths, with padding and gaps."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import torch

from lade.kernels import reference
from lade.kernels.rows import CHAIN, WORD, Row, Rows, Rules

SIZES = (16, 24, 40, 64)  # of heads
GROUPS = (1, 2, 3, 4, 7)


@dataclass(frozen=True)
class Case:
    """What one launch computes."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    rows: Rows
    rules: Rules

    def exact(self) -> torch.Tensor:
        """[T, heads, E] in float64."""
        return reference.attend(self.query, self.key, self.value, self.rows, self.rules, torch.float64)

    def error(self, found: torch.Tensor) -> float:
        """The largest difference from float64."""
        return self.errors(found)[0]

    def errors(self, *results: torch.Tensor) -> list[float]:
        """Of several results."""
        exact = self.exact()
        return [(found.double() - exact).abs().max().item() for found in results]

    def masked(self) -> torch.Tensor:
        """The same by PyTorch's attention with dense masks and repeated keys, one call per row."""
        group = self.query.shape[0] // self.key.shape[0]
        found = torch.zeros(self.query.shape[1], self.query.shape[0], self.value.shape[2], dtype=self.query.dtype)
        for first, nodes, keys, held, origin, done, columns, tree in self.rows.table.tolist():
            row = Row(first, nodes, keys, held, origin, done + nodes, tree)
            mask = torch.zeros(nodes, held + columns).to(self.query)
            mask.masked_fill_(~reference.visible(row, self.rows.integers, self.rules), -torch.inf)
            k, v = (
                states[:, keys : keys + held + columns].repeat_interleave(group, 0) for states in (self.key, self.value)
            )
            q = self.query[:, first : first + nodes]
            attention = torch.nn.functional.scaled_dot_product_attention
            found[first : first + nodes] = attention(
                q[None], k[None], v[None], mask[None, None], scale=self.rules.scale
            )[0].transpose(0, 1)
        return found


def tree_row(random: Random, first: int, keys: int, sizes: tuple[int, int, int], integers: list[int]) -> Row:
    """One row with a random tree, whose integers are added.

    Args:
        sizes: keys before the tree, nodes of the tree, and queries among them.
    """
    held, columns, nodes = sizes
    depths, seen = [0], [1]
    for node in range(1, columns):
        parent = random.randrange(max(0, node - random.choice((1, 3, 9))), node)
        depths.append(depths[parent] + 1)
        seen.append(seen[parent] | 1 << node)
    origin = random.choice((0, 0, random.randrange(40), -random.randrange(held + 1)))
    place = len(integers)
    integers += depths
    for bits in seen[columns - nodes :]:
        octets = bits.to_bytes(8 * -(-columns // WORD), "little")
        integers += [int.from_bytes(octets[at : at + 8], "little", signed=True) for at in range(0, len(octets), 8)]
    return Row(first, nodes, keys, held, origin, columns, place)


def chain_row(random: Random, first: int, keys: int, sizes: tuple[int, int, int]) -> Row:
    held, columns, nodes = sizes
    return Row(first, nodes, keys, held, random.choice((0, -random.randrange(held + 1))), columns, CHAIN)


def random_rows(random: Random, most: int, keys: int, nodes: int) -> tuple[Rows, int, int]:
    """Up to `most` rows, and how many queries and keys there are."""
    found: list[Row] = []
    integers = [0]
    first = place = 0
    for _ in range(random.randrange(most) + 1):
        columns = random.randrange(nodes) + 1
        sizes = random.randrange(keys), columns, random.choice((columns, random.randrange(columns) + 1))
        place += random.randrange(5)
        if random.random() < 0.3:
            found.append(chain_row(random, first, place, sizes))
        else:
            found.append(tree_row(random, first, place, sizes, integers))
        first, place = first + sizes[2], place + sizes[0] + columns
    return Rows.of(found, integers, torch.device("cpu")), first, place


def random_rules(random: Random, size: int, heads: int, dtype: torch.dtype, plain: bool) -> Rules:
    """A window, a chunk or neither; a soft cap and sinks, unless it is to be plain."""
    limits = random.choice(({}, {"window": random.randrange(60) + 1}, {"chunk": random.randrange(60) + 1}))
    cap = None if plain or random.random() < 0.5 else 2.0
    sinks = None if plain or random.random() < 0.5 else torch.randn(heads).to(dtype)
    return Rules(size**-0.5, **limits, cap=cap, sinks=sinks)


def random_case(
    random: Random, dtype: torch.dtype, *, plain: bool = False, most: int = 2, keys: int = 90, nodes: int = 24
) -> Case:
    """A launch of some rows with random states of one type."""
    generator = torch.Generator().manual_seed(random.randrange(1 << 30))
    shared, group, size = random.randrange(2) + 1, random.choice(GROUPS), random.choice(SIZES)
    value_size = random.choice((size, size, random.choice(SIZES)))
    rows, tokens, length = random_rows(random, most, keys, nodes)
    query, key, value = (
        torch.randn(length, heads, width, generator=generator).to(dtype).transpose(0, 1)
        for length, heads, width in (
            *((tokens, shared * group, size), (length + 3, shared, size)),
            (length + 3, shared, value_size),
        )
    )
    torch.manual_seed(random.randrange(1 << 30))
    return Case(query, key, value, rows, random_rules(random, size, shared * group, dtype, plain))
