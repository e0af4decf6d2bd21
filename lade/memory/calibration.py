"""How much each source is to be believed, learned while decoding.

The sources stand in a fixed order, the most specific first. Each takes its weight of what those before it left, so a
token's probability is a mixture. The weights of stage s and bucket b (how long a match is, how deep the node lies)
follow the share of the model's own choices that this stage explains better than those behind it: online
expectation-maximisation of a stick-breaking mixture. Knows no tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

STRENGTH = 20.0  # observations that a prior counts for
ESCAPE = 1e-3  # probability of a token that no stage knows


class Calibration:
    """Weights per stage and bucket.

    Args:
        priors: for each stage its weight per bucket before anything was seen.
    """

    def __init__(self, priors: Sequence[Sequence[float]]) -> None:
        self.weights = [list(stage) for stage in priors]
        self.seen = [[STRENGTH] * len(stage) for stage in priors]

    def learn(self, stages: Sequence[tuple[int, int, float]]) -> None:
        """One verified node.

        Args:
            stages: (stage, bucket, probability that it gave the model's choice) of those that had a say, in order.
        """
        behind, shares = ESCAPE, []
        for stage, bucket, probability in reversed(stages):
            weight = self.weights[stage][bucket]
            own = weight * probability
            behind = own + (1 - weight) * behind
            shares.append(own / behind if behind > 0 else 0.0)
        reached = 1.0
        for (stage, bucket, _), share in zip(stages, reversed(shares), strict=True):
            seen = self.seen[stage][bucket] = self.seen[stage][bucket] + reached
            self.weights[stage][bucket] += (share - self.weights[stage][bucket]) * reached / seen
            reached *= 1 - share
