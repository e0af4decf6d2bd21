"""Recent predictions: a share of what each step predicted, less with every step that passes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rowarrays import Entry, memory_of, predicted, row_of

from lade.memory.pools import fresh_pool
from lade.memory.recent import NUMBER, RECENCY, add_mass, begin_sums, keep_sums, slots_for
from lade.memory.row import RECENT, RECENT_MASSES
from lade.memory.rowmemory import RowMemory
from lade.memory.stages import RECENT as BY_RECENT

pytestmark = pytest.mark.usefixtures("as_python")

POOL = fresh_pool()
ENTRIES = st.lists(st.integers(0, 300), min_size=1, max_size=8, unique=True).map(
    lambda tokens: (tokens, [0.5 * 0.5**rank for rank in range(len(tokens))])
)
STEPS = st.lists(st.lists(ENTRIES, max_size=12), min_size=1, max_size=5)


def fresh() -> RowMemory:
    return memory_of([0], pool=POOL)


def learn(memory: RowMemory, entries: list[Entry]) -> None:
    """What the model predicted in one step."""
    row, slots = row_of(memory), slots_for(len(entries), 8)
    arrays = row.ints, row.floats, RECENT, RECENT_MASSES, [0] * 2 * slots, [0.0] * slots, slots
    number = begin_sums(*arrays)
    for tokens, probabilities in entries:
        for token, probability in zip(tokens, probabilities, strict=True):
            number = add_mass(*arrays[4:], number, token, probability)
    keep_sums(*arrays, number, len(entries))


def likeliest(memory: RowMemory) -> Entry:
    return predicted(memory, BY_RECENT)[1:]


def test_nothing_is_predicted_before_the_first_step() -> None:
    assert likeliest(fresh()) == ([], [])


def test_predictions_are_averaged_and_older_ones_count_less() -> None:
    recent = fresh()
    learn(recent, [([1, 2], [0.6, 0.2]), ([2, 3], [0.5, 0.3])])
    assert likeliest(recent)[0] == [2, 1, 3]
    assert likeliest(recent)[1] == pytest.approx([0.35, 0.3, 0.15])
    learn(recent, [([3], [0.4])])
    total = 2 * RECENCY.decay + 1
    masses = {2: 0.7 * RECENCY.decay, 1: 0.6 * RECENCY.decay, 3: 0.3 * RECENCY.decay + 0.4}
    assert dict(zip(*likeliest(recent), strict=True)) == pytest.approx(
        {token: mass / total for token, mass in masses.items()}
    )


@given(steps=STEPS)
@settings(max_examples=40)
def test_it_agrees_with_its_definition(steps: list[list[Entry]]) -> None:
    """As long as no token was forgotten: the average of all predictions, those of older steps weighted down."""
    recent, weighted = fresh(), list[tuple[float, Entry]]()
    for entries in filter(None, steps):
        learn(recent, entries)
        weighted = [(RECENCY.decay * weight, entry) for weight, entry in weighted] + [(1.0, entry) for entry in entries]
        tokens, shares = likeliest(recent)
        assert len(tokens) == len(set(tokens)) <= RECENCY.offered
        assert shares == sorted(shares, reverse=True)
        assert sum(shares) <= 1 + 1e-9
        masses: dict[int, float] = {}
        for weight, entry in weighted:
            for token, probability in zip(*entry, strict=True):
                masses[token] = masses.get(token, 0.0) + weight * probability
        assert row_of(recent).ints[RECENT + NUMBER] == min(len(masses), RECENCY.kept)
        if len(masses) > RECENCY.kept:
            return
        total = sum(weight for weight, _ in weighted)
        best = sorted(masses.values(), reverse=True)[: RECENCY.offered]
        assert shares == pytest.approx([mass / total for mass in best])
        assert all(masses[token] / total == pytest.approx(share) for token, share in zip(tokens, shares, strict=True))


def test_the_largest_masses_are_remembered() -> None:
    """In the order of their masses, whatever that in which they came."""
    recent, tokens = fresh(), [31 * token % 101 for token in range(101)]
    learn(recent, [([token], [(token + 1) / 101]) for token in tokens])
    known = row_of(recent).ints[RECENT + 1 : RECENT + 1 + RECENCY.kept].tolist()
    assert known == [100 - rank for rank in range(RECENCY.kept)]
