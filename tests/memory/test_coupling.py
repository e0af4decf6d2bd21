"""Predictions that know the noise of sampling: what they are worth, and whose noise they take."""

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rowarrays import learn, memory_of, place, predicted, warm_of

from lade.config.settings import LookaheadConfig
from lade.memory.coupling import COUPLED, FIELDS, KNOWN, MEDIAN, NEXT, Coupling, couple
from lade.memory.pools import fresh_pool
from lade.memory.regions import Regions
from lade.memory.rowmemory import RowMemory
from lade.memory.stages import OWN as SUFFIX
from lade.memory.stages import RECYCLED_4, WARM

pytestmark = pytest.mark.usefixtures("as_python")

VOCABULARY = 8
SEEDS = st.integers(0, 10_000)
NUMBERS = st.integers(0, VOCABULARY)


def drawn(seed: int, number: int, total: float) -> tuple[list[int], list[float], np.ndarray]:
    """Predictions, likeliest first, whose probabilities have this sum, and noise of all indices."""
    noise = np.random.default_rng(seed)
    masses = np.sort(noise.dirichlet(np.ones(number)))[::-1] * total if number else np.zeros(0)
    tokens = noise.permutation(VOCABULARY)[:number]
    return tokens.tolist(), masses.tolist(), noise.exponential(size=COUPLED * VOCABULARY).astype(np.float32)


def coupled(
    tokens: Sequence[int], masses: Sequence[float], ring: np.ndarray, depth: int = 0, following: int = 0, known: int = 1
) -> tuple[list[int], list[float]]:
    ints, tokens, masses = np.zeros(FIELDS, np.int32), [*tokens], [*masses]
    ints[NEXT], ints[KNOWN] = following, known
    couple(memoryview(ints), 0, memoryview(ring), depth, tokens, masses, len(tokens))
    return tokens, masses


@given(seed=SEEDS, following=st.integers(0, COUPLED - 1), depth=st.integers(0, COUPLED - 1))
def test_what_is_known_of_the_model_exactly_is_drafted_right(seed: int, following: int, depth: int) -> None:
    """The likeliest is then what sampling chooses, of the index that the depth of the node says."""
    tokens, masses, ring = drawn(seed, VOCABULARY, 1.0)
    index = (following + depth) % COUPLED
    noise = ring[index * VOCABULARY : (index + 1) * VOCABULARY]
    found, _ = coupled(tokens, masses, ring, depth, following, known=COUPLED)
    assert found[0] == max(zip(tokens, masses, strict=True), key=lambda each: each[1] / noise[each[0]])[0]


@given(seed=SEEDS, number=NUMBERS, total=st.floats(0.01, 1.0))
def test_probabilities_are_by_noise_and_the_rest_counts(seed: int, number: int, total: float) -> None:
    tokens, masses, ring = drawn(seed, number, total)
    weights = {token: mass / ring[token] for token, mass in zip(tokens, masses, strict=True)}
    whole = sum(weights.values()) + (1 - sum(masses)) / MEDIAN
    found, shares = coupled(tokens, masses, ring)
    assert shares == sorted(shares, reverse=True)
    assert shares == pytest.approx([weights[token] / whole for token in found])


@given(seed=SEEDS, number=NUMBERS)
def test_without_noise_predictions_stay(seed: int, number: int) -> None:
    tokens, masses, ring = drawn(seed, number, 0.9)
    assert coupled(tokens, masses, ring, depth=2, known=2) == (tokens, masses)
    assert coupled(tokens, masses, np.zeros(0, np.float32), known=0) == (tokens, masses)


def test_a_token_that_the_model_has_not_and_noise_of_zero() -> None:
    """The first counts as a token of median noise."""
    ring = np.ones(COUPLED * VOCABULARY, np.float32)
    _, shares = coupled([VOCABULARY + 1, 3], [0.6, 0.4], ring)
    assert shares[0] / shares[1] == pytest.approx(0.6 / MEDIAN / 0.4)
    ring[3] = 0.0
    found, shares = coupled([VOCABULARY + 1, 3], [0.6, 0.4], ring)
    assert found == [3, VOCABULARY + 1]
    assert shares[0] == pytest.approx(1.0)


def test_the_ring_holds_the_noise_of_the_next_tokens() -> None:
    """Each index is asked for once, in order, however many tokens a step emits and however deep its draft may be."""
    asked: list[int] = []
    choices = random.Random(0)

    def noise_of(index: int) -> np.ndarray:
        asked.append(index)
        return np.full(3, index, np.float32)

    regions = Regions(FIELDS)
    coupling, emitted = Coupling(regions, 0, noise_of), 1
    assert not len(coupling.ring)
    for _ in range(60):
        deepest = choices.randrange(2 * COUPLED)
        coupling.advance(emitted, deepest)
        following, known = regions.ints.tolist()
        assert known == min(deepest, COUPLED)
        for depth in range(known):
            begin = (following + depth) % COUPLED * 3
            assert coupling.ring[begin : begin + 3].tolist() == [emitted + depth] * 3
        emitted += choices.randrange(1, COUPLED + 3)
    assert asked == sorted(set(asked))


def test_the_model_s_predictions_are_coupled_and_others_are_not() -> None:
    def noise_of(index: int) -> np.ndarray:
        return np.array([1.0, 1.0, 1.0, 1.0, 1.0, 0.01], np.float32)

    pool, text = fresh_pool(), [1, 2, 1, 2]
    warm = warm_of(([3, 5], [0.9, 0.1]))
    plain = memory_of(text, pool=pool, warm=warm)
    memory = RowMemory(LookaheadConfig().settled(), text, 4, pool, warm, noise=noise_of)
    learn(pool.table, text, ([1, 5], [0.8, 0.1]))
    memory.coupling.advance(0, 1)
    assert memory.row().noise is memory.coupling.ring
    for each in (plain, memory):
        place(each)
    for stage, tokens in ((RECYCLED_4, [1, 5]), (WARM, [3, 5])):
        assert predicted(plain, stage)[1][:2] == tokens
        assert predicted(memory, stage)[1][:2] == tokens[::-1]
    assert predicted(memory, SUFFIX) == predicted(plain, SUFFIX)
    assert predicted(memory, SUFFIX)[1] == [1]
