"""What is expected after a node: shares of one whole, whatever the stages know; nodes against longer texts."""

import random
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rowarrays import (
    Entry,
    context_of,
    expected,
    halves,
    learn,
    memory_of,
    nodes_of,
    padded,
    place,
    predicted,
    row_of,
    scratch,
    warm_of,
    write,
)

from lade.memory.automaton import TOKENS as LENGTH
from lade.memory.automaton import at
from lade.memory.backoff import backoff
from lade.memory.context import CONTEXT
from lade.memory.corpora import corpus_of
from lade.memory.coverage import SHARE
from lade.memory.evidence import bucket_of
from lade.memory.matches import END as MATCH_END
from lade.memory.matches import LENGTH as MATCH_LENGTH
from lade.memory.matches import REPEATS
from lade.memory.mixture import CALIBRATION, weigh
from lade.memory.pools import Pool, fresh_pool
from lade.memory.predictions import RECYCLING
from lade.memory.reference import MATCHING
from lade.memory.row import (
    COVER,
    DEPTH,
    OWN,
    OWN_MATCH,
    RECENT,
    RECENT_MASSES,
    REFERENCE_END,
    REFERENCE_LENGTH,
)
from lade.memory.row import REFERENCE as REFERENCE_FIELDS
from lade.memory.rowmemory import RowMemory
from lade.memory.stages import BUCKETS, NAMES, NUMBER, RECYCLED_4, REFERENCE, WARM, WINDOW, match_bucket
from lade.memory.stages import OWN as SUFFIX
from lade.memory.stages import RECENT as BY_RECENT
from lade.memory.warmtable import WarmContexts, WarmTable

pytestmark = pytest.mark.usefixtures("as_python")

VOCABULARY = range(6)
TEXTS = st.lists(st.integers(0, 2), min_size=1, max_size=20)
MIXTURES = {"seed": st.integers(0, 10_000), "text": TEXTS, "path": st.lists(st.integers(0, 2), max_size=4)}


def prediction(noise: random.Random) -> Entry:
    """Up to five tokens with probabilities that sum to at most 1."""
    weights = sorted((noise.random() ** 3 for _ in range(noise.randint(1, 5))), reverse=True)
    scale = sum(weights) / noise.uniform(0.01, 1)
    return noise.sample(VOCABULARY, k=len(weights)), [weight / scale for weight in weights]


def teach(pool: Pool, noise: random.Random) -> None:
    pool.table.reserve(10 * CONTEXT)
    for _ in range(10):
        learn(pool.table, noise.choices(range(3), k=CONTEXT), prediction(noise))


def mixture_of(seed: int, text: Sequence[int]) -> RowMemory:
    """Every stage there is, taught by chance, with weights anywhere between 0 and 1."""
    noise, pool = random.Random(seed), fresh_pool()
    pool.calibration.numbers[:BUCKETS] = [noise.random() for _ in range(BUCKETS)]
    teach(pool, noise)
    grams = [noise.choices(range(3), k=3) for _ in range(8)]
    reference, prompt = noise.choices(range(3), k=10), noise.randrange(len(text) + 1)
    warm = warm_of(*[prediction(noise) for _ in range(3)])
    corpus = corpus_of([noise.choices(range(3), k=9) for _ in range(3)])
    memory = memory_of(text, prompt=prompt, reference=reference, warm=warm, grams=grams, pool=pool, corpus=corpus)
    teach(pool, noise)
    tokens, masses = prediction(noise)
    row = row_of(memory)
    row.floats[COVER + SHARE] = noise.uniform(0.3, 1)
    row.ints[RECENT], row.floats[RECENT_MASSES] = len(tokens), 1.0
    for rank, (token, mass) in enumerate(zip(tokens, masses, strict=True)):
        row.ints[RECENT + 1 + rank], row.floats[RECENT_MASSES + 1 + rank] = token, mass
    return memory


def own_text(text: Sequence[int]) -> RowMemory:
    """Its own text alone, with a weight of one half."""
    return halves(memory_of(text, only=["suffix"]))


# What is expected


@given(**MIXTURES)
@settings(max_examples=50)
def test_masses_are_shares_of_one_whole(seed: int, text: list[int], path: list[int]) -> None:
    memory = mixture_of(seed, text)
    for node in range(place(memory, path) + 1):
        masses, _ = expected(memory, node)
        assert all(0 <= mass <= 1 for mass in masses.values())
        assert sum(masses.values()) <= 1 + 1e-6


@given(**MIXTURES)
@settings(max_examples=50)
def test_each_stage_takes_its_weight_of_what_is_left(seed: int, text: list[int], path: list[int]) -> None:
    memory = mixture_of(seed, text)
    node, masses, stages, left = place(memory, path), dict[int, float](), dict[int, int](), 1.0
    for stage in range(NUMBER):
        bucket, tokens, probabilities = predicted(memory, stage, node)
        if tokens:
            share = left * memory.pool.calibration.numbers[bucket_of(stage, len(path), bucket)]
            left -= share
            for token, probability in zip(tokens, probabilities, strict=True):
                masses[token] = masses.get(token, 0.0) + share * probability
                stages.setdefault(token, stage)
    assert expected(memory, node) == (pytest.approx(masses), stages)


@given(**MIXTURES, floor=st.floats(0, 0.5))
@settings(max_examples=50)
def test_a_floor_removes_and_never_adds(seed: int, text: list[int], path: list[int], floor: float) -> None:
    """What it removes of a token is less than the floor for each stage."""
    memory = mixture_of(seed, text)
    node = place(memory, path)
    whole, first = expected(memory, node)
    masses, stages = expected(memory, node, floor)
    assert masses.keys() <= whole.keys()
    assert all(masses[token] <= whole[token] + 1e-12 and stages[token] >= first[token] for token in masses)
    for token, mass in whole.items():
        assert mass - masses.get(token, 0.0) <= NUMBER * floor + 1e-12


def every_stage_of(pool: Pool) -> RowMemory:
    """Stages of which most predict a token of their own, with weights of one half; recycled predictions are to come."""
    text, names = [1, 2, 3, 1, 2], {*NAMES} - {"mismatch", "counts", "counts-1"}
    warm, grams = warm_of(([9, 5], [0.5, 0.5])), [[1, 2, 4]]
    memory = halves(memory_of(text, prompt=3, reference=[1, 2, 5], warm=warm, grams=grams, pool=pool, only=names))
    row = row_of(memory)
    row.floats[COVER + SHARE], row.ints[RECENT], row.ints[RECENT + 1] = 1.0, 1, 8
    row.floats[RECENT_MASSES], row.floats[RECENT_MASSES + 1] = 2.0, 1.0
    return memory


def test_every_stage_stands_in_its_order() -> None:
    """The first to predict takes 1/2, the second 1/4 and so on; those that agree add up."""
    memory, newest = every_stage_of(pool := fresh_pool()), RECYCLING.newest_of_several
    learn(pool.table, (7, 7, 1, 2), ([7], [1.0]))
    learn(pool.table, (2, 3, 1, 2), ([6], [1.0]))
    masses, stages = expected(memory, place(memory))
    assert stages == {5: REFERENCE, 3: SUFFIX, 4: WINDOW, 6: RECYCLED_4, 7: RECYCLED_4 + 2, 9: WARM, 8: BY_RECENT}
    recycled = {6: 1 / 16 + 1 / 32 + newest / 64 + 1 / 256, 7: (1 - newest) / 64 + 1 / 256}
    shares = {5: 1 / 2 + 1 / 512, 3: 1 / 4, 4: 1 / 16, 9: 1 / 512, 8: 1 / 1024}
    assert masses == pytest.approx(shares | recycled)


def test_what_was_kept_stands_behind_own_predictions_and_before_the_warm_table() -> None:
    learn((pool := fresh_pool()).table, (2, 3, 1, 2), ([6], [1.0]))
    memory = every_stage_of(pool)
    learn(pool.table, (7, 7, 1, 2), ([7], [1.0]))
    masses, stages = expected(memory, place(memory))
    recycled_2 = RECYCLED_4 + 2
    assert stages == {5: REFERENCE, 3: SUFFIX, 4: WINDOW, 6: recycled_2, 7: recycled_2, 9: WARM, 8: BY_RECENT}
    newest = RECYCLING.newest_of_several
    own = {6: (1 - newest) / 16 + 1 / 64, 7: newest / 16 + 1 / 64}  # after two tokens, and one half after one
    shares = {5: 1 / 2 + 1 / 256, 3: 1 / 4, 4: 1 / 16, 9: 1 / 256, 8: 1 / 512}
    assert masses == pytest.approx(shares | own | {6: own[6] + 1 / 64})  # what was kept of four tokens


def test_without_stages_nothing_is_expected() -> None:
    memory = memory_of([1, 2, 1, 2], only=[])
    assert expected(memory, place(memory, [2])) == ({}, {})


def test_a_warm_table_s_weight_depends_on_how_much_of_the_context_it_knows() -> None:
    tokens, masses = torch.tensor([[5]] * 5, dtype=torch.int32), torch.full((5, 1), 0.5)
    contexts = WarmContexts(torch.tensor([[-1, -1, -1, 3], [-1, -1, 4, 3]], dtype=torch.int32), tokens[:2], masses[:2])
    memory = memory_of([0], warm=backoff(WarmTable(tokens, masses, contexts, 0.0), 1.0), only=["warm"])
    memory.pool.calibration.weights[WARM][:] = [bucket / 100 for bucket in range(3 * (CONTEXT + 1))]
    for path, bucket in (([], 0), ([3], CONTEXT + 2), ([4, 3], CONTEXT + 3), ([1, 4, 3], 2 * (CONTEXT + 1) + 2)):
        assert expected(memory, place(memory, path))[0] == {5: pytest.approx(bucket / 100 * 0.5)}


# What is learned


@given(**MIXTURES, choice=st.integers(0, 6))
def test_every_stage_that_predicted_learns_from_the_choice(
    seed: int, text: list[int], path: list[int], choice: int
) -> None:
    """The choice's mass grows, what no stage expects included, of which each token has a little."""
    memory = mixture_of(seed, text)
    node, numbers = place(memory, path), memory.pool.calibration.numbers
    before, likely, masses = numbers.copy(), chance(memory, node, choice), expected(memory, node)[0]
    weigh(row_of(memory), node, choice, *scratch())
    seen = (numbers != before)[BUCKETS:].nonzero()[0]
    assert {*seen} == {*buckets(memory, node)}
    assert chance(memory, node, choice) >= likely - 1e-12
    if choice not in masses:  # the weights of those that predicted fall
        assert (numbers <= before)[:BUCKETS].all()


def buckets(memory: RowMemory, node: int) -> list[int]:
    """Of the stages that predict there."""
    depth = int(nodes_of(memory, node + 1)[node, DEPTH])
    said = [(stage, *predicted(memory, stage, node)) for stage in range(NUMBER)]
    return [bucket_of(stage, depth, bucket) for stage, bucket, tokens, _ in said if tokens]


def chance(memory: RowMemory, node: int, token: int) -> float:
    """The token's probability in the mixture, at whose end any token may come."""
    left = 1.0
    for bucket in buckets(memory, node):
        left *= 1 - memory.pool.calibration.numbers[bucket]
    return expected(memory, node)[0].get(token, 0.0) + CALIBRATION.escape * left


# Nodes


@given(text=TEXTS, more=st.lists(st.integers(0, 9), max_size=8))
def test_a_node_has_the_last_tokens_of_the_longer_text(text: list[int], more: list[int]) -> None:
    memory = own_text(text)
    assert context_of(memory, place(memory, more)) == padded([*text, *more])[-CONTEXT:]
    write(memory, more)
    assert context_of(memory, place(memory)) == padded([*text, *more])[-CONTEXT:]


IN_OWN_TEXT = OWN_MATCH + MATCH_END, OWN_MATCH + MATCH_LENGTH


def match_of(
    memory: RowMemory, node: int, end: int = IN_OWN_TEXT[0], length: int = IN_OWN_TEXT[1]
) -> tuple[int, int] | None:
    """Where a node's match goes on, and its length."""
    found = nodes_of(memory, node + 1)[node]
    return (int(found[end]), int(found[length])) if found[end] >= 0 else None


@given(seed=st.integers(0, 1000), text=TEXTS, right=st.integers(0, 12))
@settings(max_examples=50)
def test_matches_go_on_token_by_token(seed: int, text: list[int], right: int) -> None:
    memory, in_reference = mixture_of(seed, text), (REFERENCE_END, REFERENCE_LENGTH)
    root = place(memory)
    for columns in (IN_OWN_TEXT, in_reference):
        begun = match_of(memory, root, *columns)
        if begun is None or (columns is IN_OWN_TEXT and begun[1] < REPEATS.shortest):
            continue
        end, length = begun
        path = [token for _, token in zip(range(right), text_from(memory, end, columns == in_reference), strict=False)]
        for went in range(place(memory, [*path, 9, 0]) + 1):
            if went > len(path) and columns is IN_OWN_TEXT:  # behind a mismatch: `test_matches.py`
                continue
            goes_on = (end + went, length + went) if went <= len(path) else None
            assert match_of(memory, went, *columns) == goes_on


def text_from(memory: RowMemory, end: int, in_reference: bool) -> list[int]:
    """How the text or the reference goes on from there."""
    ints = row_of(memory).ints
    if not in_reference:
        return [at(ints, OWN, end + step) for step in range(12)]
    begin, number = ints[REFERENCE_FIELDS], ints[REFERENCE_FIELDS + LENGTH]
    return [*ints[begin + end : begin + number]]


def test_a_match_of_the_own_text_has_a_least_length() -> None:
    for length in range(1, 5):
        memory = own_text([*range(length), 7, 8, *range(length)])
        assert match_of(memory, place(memory)) == ((length, length) if length >= REPEATS.shortest else None)


def test_before_any_output_a_reference_begins() -> None:
    memory = halves(memory_of([1], reference=[4, 5], only=["reference"]))
    columns = REFERENCE_END, REFERENCE_LENGTH
    assert match_of(memory, place(memory), *columns) == (0, MATCHING.beginning)
    assert expected(memory, 0)[0] == {4: 0.5}
    assert match_of(memory, place(memory, [4, 5]), *columns) == (2, MATCHING.beginning + 2)
    assert expected(memory, 2)[0] == {}
    write(memory, [9])
    assert match_of(memory, place(memory), *columns) is None


def test_the_weight_of_a_drafted_match_depends_on_its_length() -> None:
    memory = own_text([1, 2, 3, 4, 5, 1, 2])
    weights = memory.pool.calibration.numbers
    place(memory, [3, 4])
    for depth, length in ((0, 2), (1, 3), (2, 4)):
        weights[bucket_of(SUFFIX, depth, match_bucket(length))] = 0.25 + length / 100
        assert expected(memory, depth)[0] == {length + 1: 0.25 + length / 100}
