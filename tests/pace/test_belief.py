"""The Bayesian filter of the belief: against the posterior over all sequences of states."""

import itertools
import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lade.pace.belief import BELIEF, Belief

OBSERVATIONS = st.lists(st.tuples(st.floats(0.01, 0.97), st.booleans()), max_size=6)


def posterior(seen: Sequence[tuple[float, bool]]) -> float:
    """Probability of the state after the last token, by enumeration of all states before."""
    masses = [0.0, 0.0]
    for states in itertools.product((False, True), repeat=len(seen) + 1):
        mass = BELIEF.prior if states[0] else 1 - BELIEF.prior
        for (expected, accepted), holds, after in zip(seen, states, states[1:], strict=False):
            if holds:
                mass *= expected if accepted else 1 - expected
            else:
                mass *= BELIEF.chance if accepted else 1 - BELIEF.chance
            moved = BELIEF.change * (BELIEF.after_change if after else 1 - BELIEF.after_change)
            mass *= (1 - BELIEF.change) * (holds == after) + moved
        masses[states[-1]] += mass
    return masses[True] / sum(masses)


@given(OBSERVATIONS)
def test_the_belief_is_the_posterior(seen: list[tuple[float, bool]]) -> None:
    belief = Belief()
    for expected, accepted in seen:
        belief.observe(expected, expected if accepted else 0.0)
    assert belief.holds == pytest.approx(posterior(seen))


def test_an_outcome_as_likely_in_both_states_changes_nothing_but_the_transition() -> None:
    for accepted in (BELIEF.chance, 0.0):
        seen, unseen = Belief(), Belief()
        seen.observe(BELIEF.chance, accepted)
        unseen.next_token()
        assert seen.holds == pytest.approx(unseen.holds)


def test_a_miss_of_a_certain_draft_does_not_rule_out_that_probabilities_hold() -> None:
    belief = Belief()
    belief.observe(1.0, 0.0)
    assert belief.holds > BELIEF.change * BELIEF.after_change


def test_without_observations_the_belief_forgets() -> None:
    belief = Belief()
    assert belief.trusted
    belief.next_token()
    assert belief.holds == pytest.approx(0.99 * 0.95 + 0.01 * 0.4)
    for _ in range(1000):
        belief.next_token()
    assert math.isclose(belief.holds, BELIEF.after_change, abs_tol=1e-3)
    assert not belief.trusted
