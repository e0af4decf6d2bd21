"""Growth of several trees that share a number of nodes: against naive search over all paths of all trees."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import RLock
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lade.core.tree import TreeBuilder
from lade.drafters.growth import GrowingTree, Growth

NAMES = ("even", "odd")
Path = tuple[int, ...]


@dataclass(frozen=True)
class Paths:
    """A mixture whose places are paths, with probabilities drawn for each."""

    seed: int
    pool: Any = field(default_factory=lambda: SimpleNamespace(lock=RLock()), compare=False)

    def expect(self, place: Path, depth: int, floor: float) -> tuple[dict[int, float], dict[int, int]]:
        assert depth == len(place)
        assert self.pool.lock._is_owned()
        masses, stages = self.after(place)
        return {token: mass for token, mass in masses.items() if mass >= floor * (1 - 1e-9)}, stages

    def after(self, place: Path) -> tuple[dict[int, float], dict[int, int]]:
        noise = random.Random(repr((self.seed, place)))
        shares = [noise.random() ** 2 for _ in range(noise.randrange(4))]
        total = sum(shares) + 0.1
        return {token: share / total for token, share in enumerate(shares)}, {token: token % 2 for token in range(4)}

    def follow(self, place: Path, token: int) -> Path:
        return (*place, token)


@dataclass(frozen=True)
class Limits:
    """Of one tree."""

    deepest: int
    most: int
    weight: float


LIMITS = st.builds(Limits, st.integers(0, 4), st.integers(1, 12), st.sampled_from((1.0, 0.9, 0.3, 0.01)))
CASES = {"seed": st.integers(0, 9999), "limits": st.lists(LIMITS, min_size=1, max_size=4), "room": st.integers(0, 24)}


def planted(seed: int, limits: Sequence[Limits], floor: float = 0.0) -> list[GrowingTree]:
    return [
        GrowingTree(TreeBuilder(7), Paths(seed + row), [()], each.deepest, each.most, floor, floor, each.weight)  # type: ignore[arg-type,list-item]
        for row, each in enumerate(limits)
    ]


def grown(seed: int, limits: Sequence[Limits], nodes: int, child_prior: float = 1.0) -> list[GrowingTree]:
    trees = planted(seed, limits)
    Growth(trees, NAMES, child_prior).run(nodes)
    return trees


def children(mixture: Paths, tree: dict[Path, float], limits: Limits) -> dict[Path, float]:
    """Probabilities of the paths that a tree may be continued by."""
    found = {}
    for path, probability in tree.items():
        if len(path) < limits.deepest and len(tree) < limits.most:
            for token, mass in mixture.after(path)[0].items():
                if (*path, token) not in tree:
                    found[*path, token] = probability * mass
    return found


def naive(seed: int, limits: Sequence[Limits], nodes: int) -> tuple[list[dict[Path, float]], bool]:
    """The path of the largest value, again and again; and the likeliest child of each root. Whether nodes ran out."""
    trees: list[dict[Path, float]] = [{(): 1.0} for _ in limits]
    for count in range(len(limits), nodes + 1):
        found = {
            (row, path): (each.weight * probability, probability)
            for row, each in enumerate(limits)
            for path, probability in children(Paths(seed + row), trees[row], each).items()
        }
        if not found or count == nodes:
            break
        row, path = max(found, key=found.__getitem__)
        trees[row][path] = found[row, path][1]
    used = sum(map(len, trees)) == min(nodes, sum(each.most for each in limits))
    for row, each in enumerate(limits):
        first = children(Paths(seed + row), {(): 1.0}, each)
        if len(limits) > 1 and len(trees[row]) == 1 and first:
            path = max(first, key=first.__getitem__)
            trees[row][path] = first[path]
    return trees, used


@given(**CASES)
def test_the_nodes_of_all_trees_are_those_of_the_largest_values(seed: int, limits: list[Limits], room: int) -> None:
    """Beside the likeliest child of each root, which is there in any case."""
    nodes = len(limits) + room
    trees, used = naive(seed, limits, nodes)
    for tree, each, expected in zip(grown(seed, limits, nodes), limits, trees, strict=True):
        assert dict(zip(tree.places, tree.masses, strict=True)) == pytest.approx(expected)
        assert tree.limited == (used or len(expected) == each.most)
        assert tree.cut <= tree.masses[-1]
        assert (tree.cut > 0) == (tree.limited and len(expected) > 1)


@given(child_prior=st.sampled_from((0.3, 0.6, 1.0)), **CASES)
def test_no_tree_exceeds_its_limits(seed: int, limits: list[Limits], room: int, child_prior: float) -> None:
    trees = grown(seed, limits, len(limits) + room, child_prior)
    assert sum(len(tree.places) for tree in trees) <= room + 2 * len(limits)
    for row, (tree, each) in enumerate(zip(trees, limits, strict=True)):
        draft = tree.builder.build()
        assert 1 <= len(draft) == len(tree.masses) == len(tree.places) <= each.most
        assert max(draft.depths) <= each.deepest
        assert draft.sources == ["root", *(NAMES[token % 2] for token in draft.tokens[1:])]
        for node in range(1, len(draft)):
            parent = draft.parents[node]
            assert tree.places[node] == (*tree.places[parent], draft.tokens[node])
            mass = Paths(seed + row).after(tree.places[parent])[0][draft.tokens[node]]
            assert tree.masses[node] == pytest.approx(tree.masses[parent] * mass)


@given(child_prior=st.sampled_from((0.3, 0.6, 1.0)), **CASES)
def test_with_room_for_all_each_tree_is_that_alone(
    seed: int, limits: list[Limits], room: int, child_prior: float
) -> None:
    together = grown(seed, limits, sum(each.most for each in limits), child_prior)
    for row, (tree, each) in enumerate(zip(together, limits, strict=True)):
        (alone,) = grown(seed + row, [each], each.most, child_prior)
        assert tree.places == alone.places


def test_tokens_below_the_floor_are_skipped() -> None:
    limits = [Limits(4, 12, 1.0), Limits(4, 12, 0.5)]
    trees = planted(3, limits, floor=0.1)
    Growth(trees, NAMES, 1.0).run(99)
    whole = grown(3, limits, 99)
    for tree, other in zip(trees, whole, strict=True):
        assert min(other.masses) < 0.1
        assert tree.masses == [mass for mass in other.masses if mass >= 0.1]
