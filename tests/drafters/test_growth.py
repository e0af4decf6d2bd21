"""Growth of several trees that share a number of nodes: against naive search over all paths of all trees."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count as count_from
from math import inf

import numpy as np
import pytest
import rowarrays
from drafting import Entry, remember
from hypothesis import given
from hypothesis import strategies as st

from lade import LookaheadConfig
from lade.drafters.workspace import Grown, TreePlan, Workspace
from lade.memory.context import CONTEXT, NOTHING
from lade.memory.pools import fresh_pool
from lade.memory.row import DEPTH, PARENT, STAGE, TOKEN
from lade.memory.rowmemory import RowMemory
from lade.memory.stages import BUCKETS, FIRSTS, NAMES, RECYCLED_4

pytestmark = pytest.mark.usefixtures("as_python")

ROOT = 7
SOURCES = ("recycled-4", "recycled-3")  # of even and of odd tokens
DEEPEST = CONTEXT  # so that a context tells the path
Path = tuple[int, ...]


@dataclass(frozen=True)
class Limits:
    """Of one tree."""

    deepest: int
    most: int
    weight: float


LIMITS = st.builds(Limits, st.integers(0, DEEPEST), st.integers(1, 12), st.sampled_from((1.0, 0.9, 0.3, 0.01)))
CASES = {"seed": st.integers(0, 9999), "limits": st.lists(LIMITS, min_size=1, max_size=4), "room": st.integers(0, 24)}


def after(seed: int, path: Path) -> dict[int, float]:
    """Probabilities of the tokens after a path, drawn for each."""
    noise = random.Random(repr((seed, path)))
    shares = [noise.random() ** 2 for _ in range(noise.randrange(4))]
    return {token: float(np.float32(share / (sum(shares) + 0.1))) for token, share in enumerate(shares)}


@lru_cache(maxsize=16)
def memory_of(seed: int) -> RowMemory:
    """One that predicts so: two stages that share every probability, each with half of the tokens."""
    entries: dict[Path, Entry] = {}
    level: list[Path] = [()]
    for _ in range(DEEPEST):
        for path in level:
            context = (*[NOTHING] * CONTEXT, ROOT, *path)[-CONTEXT:]
            for parity in range(2):
                own = {token: 2 * mass for token, mass in after(seed, path).items() if token % 2 == parity}
                tokens = sorted(own, key=own.__getitem__, reverse=True)
                entries[context[parity:]] = tokens, [own[token] for token in tokens]
        level = [(*path, token) for path in level for token in after(seed, path)]
    pool = fresh_pool()
    remember(pool, entries)
    pool.calibration.numbers[:BUCKETS] = 1.0
    pool.calibration.numbers[FIRSTS[RECYCLED_4] : FIRSTS[RECYCLED_4 + 1]] = 0.5
    return RowMemory(LookaheadConfig(sources=("recycled",)).settled(), [ROOT], 1, pool)


@dataclass(frozen=True)
class Tree:
    """One that has grown: its nodes' columns, their paths and path probabilities."""

    nodes: np.ndarray
    paths: list[Path]
    masses: list[float]
    limited: bool
    cut: float

    @classmethod
    def of(cls, memory: RowMemory, grown: Grown) -> "Tree":
        nodes, paths = rowarrays.nodes_of(memory, len(grown.masses)).copy(), [()]
        assert nodes[:, [TOKEN, PARENT, DEPTH]].T.tolist() == [grown.tokens, grown.parents, grown.depths]
        assert nodes[1:, STAGE].tolist() == grown.stages[1:]
        for node in nodes[1:].tolist():
            paths.append((*paths[node[PARENT]], node[TOKEN]))
        return cls(nodes, paths, grown.masses, grown.limited, grown.cut)


def grown(
    seed: int,
    limits: Sequence[Limits],
    nodes: int,
    child_prior: float = 1.0,
    floor: float = 0.0,
    chains: bool = False,
    sure: float = inf,
) -> list[Tree]:
    memories = [memory_of(seed + row) for row in range(len(limits))]
    plans = [TreePlan(each.deepest, each.most, floor, floor, each.weight) for each in limits]
    trees = Workspace().grow(memories, [[]] * len(limits), plans, nodes, True, sure, child_prior, chains)
    return [Tree.of(*each) for each in zip(memories, trees, strict=True)]


@given(text=st.lists(st.integers(0, 4), min_size=1, max_size=8), new=st.lists(st.integers(0, 4), max_size=4))
def test_a_tree_says_whether_its_root_occurred_before(text: list[int], new: list[int]) -> None:
    memory = rowarrays.memory_of(text)
    memory.reserve_text(len(text) + len(new))
    (tree,) = Workspace().grow([memory], [new], [TreePlan(3, 4, 0.0, 0.0, 1.0)], 4, True, inf, 1.0)
    *before, last = [*text, *new]
    assert tree.repeats == (last in before)


def children(seed: int, tree: dict[Path, float], limits: Limits) -> dict[Path, float]:
    """Probabilities of the paths that a tree may be continued by."""
    found = {}
    for path, probability in tree.items():
        if len(path) < limits.deepest and len(tree) < limits.most:
            for token, mass in after(seed, path).items():
                if (*path, token) not in tree:
                    found[*path, token] = probability * mass
    return found


def naive(seed: int, limits: Sequence[Limits], nodes: int, sure: float) -> tuple[list[dict[Path, float]], bool]:
    """The path of the largest value, again and again; and the likeliest child of each root. Whether nodes ran out."""
    heaviest = max(each.weight for each in limits)
    trees: list[dict[Path, float]] = [{(): 1.0} for _ in limits]
    for count in count_from(len(limits)):
        found = {
            (row, path): (each.weight * probability, probability)
            for row, each in enumerate(limits)
            for path, probability in children(seed + row, trees[row], each).items()
        }
        if not found:
            break
        row, path = max(found, key=found.__getitem__)
        if count >= nodes and found[row, path][0] / heaviest < sure:
            break
        trees[row][path] = found[row, path][1]
    used = sum(map(len, trees)) >= min(nodes, sum(each.most for each in limits))
    for row, each in enumerate(limits):
        first = children(seed + row, {(): 1.0}, each)
        if len(limits) > 1 and len(trees[row]) == 1 and first:
            path = max(first, key=first.__getitem__)
            trees[row][path] = first[path]
    return trees, used


@given(sure=st.sampled_from((inf, 0.5, 0.2, 0.05, 0.0)), **CASES)
def test_the_nodes_of_all_trees_are_those_of_the_largest_values(
    seed: int, limits: list[Limits], room: int, sure: float
) -> None:
    """Beside the likeliest child of each root, which is there in any case, and sure ones beyond the room."""
    nodes = len(limits) + room
    trees, used = naive(seed, limits, nodes, sure)
    for tree, each, expected in zip(grown(seed, limits, nodes, sure=sure), limits, trees, strict=True):
        assert dict(zip(tree.paths, tree.masses, strict=True)) == pytest.approx(expected)
        assert tree.limited == (used or len(expected) == each.most)
        assert tree.cut <= tree.masses[-1]
        assert (tree.cut > 0) == (tree.limited and len(expected) > 1)


@given(child_prior=st.sampled_from((0.3, 0.6, 1.0)), **CASES)
def test_no_tree_exceeds_its_limits(seed: int, limits: list[Limits], room: int, child_prior: float) -> None:
    trees = grown(seed, limits, len(limits) + room, child_prior)
    assert sum(len(tree.paths) for tree in trees) <= room + 2 * len(limits)
    for row, (tree, each) in enumerate(zip(trees, limits, strict=True)):
        assert 1 <= len(tree.paths) == len({*tree.paths}) == len(tree.masses) <= each.most
        assert tree.nodes[:, DEPTH].tolist() == [len(path) for path in tree.paths]
        assert max(tree.nodes[:, DEPTH]) <= each.deepest
        assert tree.nodes[0, [TOKEN, PARENT]].tolist() == [ROOT, -1]
        for node in range(1, len(tree.paths)):
            parent, token = tree.nodes[node, PARENT], tree.nodes[node, TOKEN]
            assert parent < node
            assert NAMES[tree.nodes[node, STAGE]] == SOURCES[token % 2]
            mass = after(seed + row, tree.paths[parent])[token]
            assert tree.masses[node] == pytest.approx(tree.masses[parent] * mass)


@given(child_prior=st.sampled_from((0.3, 0.6, 1.0)), **CASES)
def test_with_room_for_all_each_tree_is_that_alone(
    seed: int, limits: list[Limits], room: int, child_prior: float
) -> None:
    together = grown(seed, limits, sum(each.most for each in limits), child_prior)
    for row, (tree, each) in enumerate(zip(together, limits, strict=True)):
        (alone,) = grown(seed + row, [each], each.most, child_prior)
        assert tree.paths == alone.paths


def test_tokens_below_the_floor_are_skipped() -> None:
    limits = [Limits(4, 12, 1.0), Limits(4, 12, 0.5)]
    for tree, other in zip(grown(3, limits, 99, floor=0.1), grown(3, limits, 99), strict=True):
        assert min(other.masses) < 0.1
        assert tree.masses == [mass for mass in other.masses if mass >= 0.1]


@given(**CASES)
def test_a_chain_is_the_path_with_the_most_expected_accepted_tokens(seed: int, limits: list[Limits], room: int) -> None:
    nodes = len(limits) + room
    pairs = zip(grown(seed, limits, nodes), grown(seed, limits, nodes, chains=True), strict=True)
    for tree, chain in pairs:
        masses = dict(zip(tree.paths, tree.masses, strict=True))
        worth = {path: sum(masses[path[:end]] for end in range(1, len(path) + 1)) for path in masses}
        path = chain.paths[-1]
        assert worth[path] == pytest.approx(max(worth.values()))
        beginnings = [path[:length] for length in range(len(path) + 1)]
        assert (chain.paths, chain.masses) == (beginnings, [masses[beginning] for beginning in beginnings])
        expected = tree.nodes[[tree.paths.index(beginning) for beginning in beginnings]]
        expected[:, PARENT] = range(-1, len(path))
        assert np.array_equal(chain.nodes, expected)
        assert (chain.limited, chain.cut) == (tree.limited, tree.cut)
