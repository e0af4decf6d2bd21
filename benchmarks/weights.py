"""Priors of the mixture's weights from what was observed at the nodes of accepted paths.

The weights of a stick-breaking mixture that make the model's choices likeliest are found by expectation-maximisation.
`log_loss` judges priors as a pool uses them: it learns along a text, and is asked before it learns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from lade.memory.mixture import CALIBRATION
from lade.memory.stages import STAGES

Shares = Sequence[tuple[int, int, float]]  # of one node: stage, bucket, probability of the model's choice
Weights = list[list[float]]  # per stage and bucket


class Learning:
    """Weights that learn from nodes as those of a pool do (`lade.memory.mixture.weigh`), from any priors."""

    def __init__(self, priors: Sequence[Sequence[float]]) -> None:
        self.weights = [list(stage) for stage in priors]
        self._seen = [[stage.strength] * len(weights) for stage, weights in zip(STAGES, priors, strict=False)]

    def learn(self, shares: Shares, escape: float) -> None:
        for stage, bucket, share, reached in [*posterior(self.weights, shares, escape)]:
            self._seen[stage][bucket] += reached
            self.weights[stage][bucket] += (share - self.weights[stage][bucket]) * reached / self._seen[stage][bucket]


def probability(weights: Sequence[Sequence[float]], shares: Shares, escape: float) -> float:
    """That the mixture gives to the model's choice; `escape` of what no stage takes counts too."""
    left, found = 1.0, 0.0
    for stage, bucket, given in shares:
        found += left * weights[stage][bucket] * given
        left *= 1 - weights[stage][bucket]
    return found + left * escape


def log_loss(texts: Sequence[Sequence[Shares]], priors: Sequence[Sequence[float]], escape: float) -> float:
    """Mean negative logarithm of the probability of the model's choice, per node."""
    total = nodes = 0.0
    for text in texts:
        learning = Learning(priors)
        for shares in text:
            total -= math.log(probability(learning.weights, shares, escape))
            learning.learn(shares, CALIBRATION.escape)
        nodes += len(text)
    return total / nodes


def likeliest(
    texts: Sequence[Sequence[Shares]], start: Sequence[Sequence[float]], escape: float, pooled: float, rounds: int = 30
) -> Weights:
    """The weights that make the choices of all texts likeliest.

    Args:
        pooled: observations that the mean of a stage's buckets counts for in each of them.
    """
    weights = [list(stage) for stage in start]
    for _ in range(rounds):
        taken, reached = ([[0.0] * len(stage) for stage in weights] for _ in range(2))
        for text in texts:
            for shares in text:
                for stage, bucket, share, left in posterior(weights, shares, escape):
                    taken[stage][bucket] += share * left
                    reached[stage][bucket] += left
        weights = [
            _smoothed(own, seen, before, pooled) for own, seen, before in zip(taken, reached, weights, strict=True)
        ]
    return weights


def posterior(weights: Weights, shares: Shares, escape: float) -> Iterator[tuple[int, int, float, float]]:
    """Per stage: stage, bucket, the posterior probability that the choice is its own if it is of no stage before, and
    that it is of none before."""
    behind, own = escape, []
    for stage, bucket, given in reversed(shares):
        part = weights[stage][bucket] * given
        behind = part + (1 - weights[stage][bucket]) * behind
        own.append(part / behind if behind > 0 else 0.0)
    left = 1.0
    for (stage, bucket, _), share in zip(shares, reversed(own), strict=True):
        yield stage, bucket, share, left
        left *= 1 - share


def _smoothed(taken: Sequence[float], reached: Sequence[float], before: Sequence[float], pooled: float) -> list[float]:
    """Posterior means, drawn towards the stage's own; a stage without observations keeps its weights."""
    if not sum(reached):
        return list(before)
    mean = sum(taken) / sum(reached)
    return [(own + pooled * mean) / (seen + pooled) for own, seen in zip(taken, reached, strict=True)]
