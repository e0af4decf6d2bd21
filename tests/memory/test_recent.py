"""Recent predictions: a share of what each step predicted, less with every step that passes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lade.memory.recent import RECENCY, RecentPredictions
from lade.memory.recycle import Entry

ENTRIES = st.lists(st.integers(0, 300), min_size=1, max_size=8, unique=True).map(
    lambda tokens: (tokens, [0.5 * 0.5**rank for rank in range(len(tokens))])
)
STEPS = st.lists(st.lists(ENTRIES, max_size=40), min_size=1, max_size=12)


def test_nothing_is_predicted_before_the_first_step() -> None:
    assert RecentPredictions().likeliest == ([], [])


def test_predictions_are_averaged_and_older_ones_count_less() -> None:
    recent = RecentPredictions()
    recent.learn([([1, 2], [0.6, 0.2]), ([2, 3], [0.5, 0.3])])
    assert recent.likeliest[0] == [2, 1, 3]
    assert recent.likeliest[1] == pytest.approx([0.35, 0.3, 0.15])
    recent.learn([([3], [0.4])])
    total = 2 * RECENCY.decay + 1
    masses = {2: 0.7 * RECENCY.decay, 1: 0.6 * RECENCY.decay, 3: 0.3 * RECENCY.decay + 0.4}
    assert dict(zip(*recent.likeliest, strict=True)) == pytest.approx(
        {token: mass / total for token, mass in masses.items()}
    )


def test_a_step_without_predictions_changes_nothing() -> None:
    recent = RecentPredictions()
    recent.learn([([4], [0.5])])
    recent.learn([])
    assert recent.likeliest == ([4], [0.5])


@given(steps=STEPS)
def test_it_agrees_with_its_definition(steps: list[list[Entry]]) -> None:
    """As long as no token was forgotten: the average of all predictions, those of older steps weighted down."""
    recent, weighted = RecentPredictions(), list[tuple[float, Entry]]()
    for entries in filter(None, steps):
        recent.learn(entries)
        weighted = [(RECENCY.decay * weight, entry) for weight, entry in weighted] + [(1.0, entry) for entry in entries]
        tokens, shares = recent.likeliest
        assert len(tokens) == len(set(tokens)) <= RECENCY.offered
        assert shares == sorted(shares, reverse=True)
        assert sum(shares) <= 1 + 1e-9
        masses: dict[int, float] = {}
        for weight, entry in weighted:
            for token, probability in zip(*entry, strict=True):
                masses[token] = masses.get(token, 0.0) + weight * probability
        if len(masses) > RECENCY.kept:
            return
        total = sum(weight for weight, _ in weighted)
        best = sorted(masses.values(), reverse=True)[: RECENCY.offered]
        assert shares == pytest.approx([mass / total for mass in best])
        assert all(masses[token] / total == pytest.approx(share) for token, share in zip(tokens, shares, strict=True))


@given(steps=STEPS)
def test_what_is_remembered_is_bounded(steps: list[list[Entry]]) -> None:
    recent = RecentPredictions()
    for entries in steps:
        recent.learn(entries)
        assert len(recent._masses) <= RECENCY.kept
