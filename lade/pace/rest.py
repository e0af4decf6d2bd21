"""Back-off after fruitless looks: where no draft is worth its cost, most steps do not even look for drafts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RestPolicy:
    """When steps rest, which means that they look for no drafts.

    `overhead` was 0.01 and 0.0075 before; `benchmarks/never_slower.py` measures what it is for: random weights, sampled
    at temperatures 1 and 1.5, decode no slower than with plain decoding. No record says what data the others were
    chosen on.

    Attributes:
        patience: fruitless looks in a row before steps rest.
        retries_after_repeat: looks that follow before steps rest again, where a token repeats one of the text.
        retries_after_accepted: the same where a draft was accepted against the belief.
        overhead: share of the time that looks may take while steps rest.
        longest: most steps that rest between two looks.
    """

    patience: int = 16
    retries_after_repeat: int = 4
    retries_after_accepted: int = 8
    overhead: float = 0.005
    longest: int = 16


REST = RestPolicy()


class Rest:
    """Which steps of one call rest."""

    def __init__(self, policy: RestPolicy = REST) -> None:
        self._policy = policy
        self._fruitless = 0  # looks in a row
        self._left = 0  # steps to rest
        self._due = 0.0  # looks that are to follow

    @property
    def fruitless(self) -> bool:
        """Whether the last looks found nothing worth its cost, so that most steps rest."""
        return self._fruitless >= self._policy.patience

    def step(self) -> bool:
        """Whether the step that begins rests."""
        if not self._left:
            return False
        self._left -= 1
        return True

    def found(self) -> None:
        """A look found a draft worth its cost."""
        self._fruitless = 0

    def found_nothing(self, overhead: float) -> None:
        """A look found none.

        Args:
            overhead: what a look takes, over what a step of one token takes without.
        """
        self._fruitless += 1
        if self.fruitless:
            self._left = min(int(overhead / self._policy.overhead), self._policy.longest)

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

    def _retry(self, looks: float) -> bool:
        """Returns whether any look follows; parts of one are kept until they are a whole one."""
        self._due += looks
        whole = int(self._due)
        self._due -= whole
        if whole:
            self._fruitless = min(self._fruitless, self._policy.patience - whole)
        return whole > 0
