"""Belief that the probabilities of drafts hold in the current text: a Bayesian filter with two states.

Either they hold, or drafts are right by chance only. The state may change with every token (a hidden Markov model), so
that a few steps turn the belief.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BeliefPolicy:
    """Probabilities of the filter. No record says what data they were chosen on.

    Attributes:
        prior: that draft probabilities hold, before anything was seen.
        change: that a token begins another kind of text.
        after_change: that they hold in the other kind of text.
        most_expected: upper limit of an expected acceptance, so that one miss never rules out that they hold.
        chance: that a draft is accepted where they do not hold.
        trusted: belief above which drafts are trusted.
    """

    prior: float = 0.95
    change: float = 0.01
    after_change: float = 0.4
    most_expected: float = 0.98
    chance: float = 0.02
    trusted: float = 0.8


BELIEF = BeliefPolicy()


class Belief:
    """The posterior of one request.

    Attributes:
        holds: probability that draft probabilities hold for the next token.
    """

    def __init__(self, policy: BeliefPolicy = BELIEF) -> None:
        self._policy = policy
        self.holds = policy.prior

    @property
    def trusted(self) -> bool:
        return self.holds > self._policy.trusted

    def observe(self, expected: float, accepted: float) -> None:
        """Bayes' rule for one token, then the transition to the next.

        Args:
            expected: probability that one of the drafts is the model's choice.
            accepted: the share in it of the draft that was; 0 if none was.
        """
        right = self.holds * (accepted or 1 - min(expected, self._policy.most_expected))
        wrong = (1 - self.holds) * (self._policy.chance if accepted else 1 - self._policy.chance)
        self.holds = right / (right + wrong)
        self.next_token()

    def next_token(self) -> None:
        """A token about which nothing is learned."""
        change = self._policy.change
        self.holds = (1 - change) * self.holds + change * self._policy.after_change
