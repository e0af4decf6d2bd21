"""Back-off after fruitless looks: where drafts save less than looking for them takes, most steps do not even look.

Looks are on credit: one takes its overhead, and its drafts save time. As long as credit is left, every step looks;
without, steps rest, and longer each time that a look between them does not pay. So looks never take much more than they
have saved. Knows numbers only.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True)
class RestPolicy:
    """When steps rest, which means that they look for no drafts. Credit is counted in looks that save nothing.

    `overhead` was 0.01 and 0.0075 before; `benchmarks/never_slower.py` measures what it is for: random weights, sampled
    at temperatures 1 and 1.5, decode no slower than with plain decoding. `most` was chosen among 16, 24 and 32 with a
    simulated clock, as of `benchmarks/simulated_pace.py`: with 16, one row of lade-code-8M-draft rests where drafts
    pay. `least_trust` and `longest` were chosen without data; no record says what data the others were chosen on.

    Attributes:
        patience: credit at the start.
        most: largest credit.
        retries_after_repeat: credit that there is at least where a token repeats one of the text.
        retries_after_accepted: the same where a draft was accepted against the belief.
        retries_after_reference: the same where a request starts that has a reference. Chosen without data.
        least_trust: smallest share of these that is given where they were spent in vain before.
        overhead: share of the time that looks may take while steps rest.
        rest: most steps that rest at first between two looks.
        longest: most steps that rest, after looks that did not pay: the number doubles with each.
    """

    patience: int = 16
    most: int = 24
    retries_after_repeat: int = 4
    retries_after_accepted: int = 8
    retries_after_reference: int = 8
    least_trust: float = 1 / 16
    overhead: float = 0.005
    rest: int = 16
    longest: int = 64


REST = RestPolicy()


class Rest:
    """Which steps of one call rest."""

    def __init__(self, policy: RestPolicy = REST) -> None:
        self._policy = policy
        self._credit = float(policy.patience)
        self._left, self._most_left = 0, policy.rest  # steps to rest, and the most of them next time
        self._trust, self._retries = 1.0, False  # in retries, and whether the credit comes from one
        self._due = 0.0  # retries that are less than a look

    @property
    def fruitless(self) -> bool:
        """Whether the last looks saved less than they took, so that most steps rest."""
        return self._credit <= 0

    def step(self) -> bool:
        """Whether the step that begins rests."""
        if not self._left:
            return False
        self._left -= 1
        return True

    def looked(self, saved: float, overhead: float) -> None:
        """A step looked for drafts.

        Args:
            saved: time that those it sends are expected to save, in steps of one token per row; 0 if it sends none.
            overhead: what the look takes, over such a step; 0 if that is not known, or nothing.
        """
        policy = self._policy
        paid = saved > overhead
        if paid:
            self._most_left, self._trust, self._retries = policy.rest, min(2 * self._trust, 1.0), False
        earned = saved / overhead if overhead else inf if paid else 0.0
        self._credit = min(self._credit + earned - 1, policy.most)
        if self._credit <= 0:
            self._run_out(overhead)

    def _run_out(self, overhead: float) -> None:
        policy = self._policy
        self._credit = 0.0
        self._left = min(int(overhead / policy.overhead), self._most_left)
        self._most_left = min(2 * self._most_left, policy.longest)
        if self._retries:
            self._trust, self._retries = max(self._trust / 2, policy.least_trust), False

    def after_repeat(self, share: float = 1.0) -> None:
        """A token repeats one of the text: its continuation may be learned in the next steps.

        Args:
            share: of the step's rows. A look is one for all of them, so that as many fewer follow.
        """
        self._retry(self._policy.retries_after_repeat * share)

    def after_accepted(self, share: float = 1.0) -> None:
        """A draft was accepted against the belief: drafts may be right again. The share is that of `after_repeat`."""
        if self._retry(self._policy.retries_after_accepted * share):
            self._left = 0

    def after_reference(self, share: float = 1.0) -> None:
        """A request starts that has a reference, a text that its own may repeat: the next step looks, for any share."""
        self._retry(max(self._policy.retries_after_reference * share, 1 / self._trust))
        self._left = 0

    def _retry(self, looks: float) -> bool:
        """Returns whether any look follows; parts of one are kept until they are a whole one."""
        self._due += looks * self._trust
        whole = int(self._due)
        self._due -= whole
        if whole > self._credit:
            self._credit, self._retries = float(whole), True
        return whole > 0
