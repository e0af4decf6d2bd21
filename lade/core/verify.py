"""Verification of a draft, which also emits tokens, since logits processors and stop rules need the text so far.

For drafts without randomness: choose a token after each visited node as plain decoding does, then follow the child with
this token. Every emitted token is the model's choice, so greedy and sampled text equal those of plain decoding, and d
accepted tokens yield d + 1. For drafts drawn from a distribution an acceptance rule chooses instead, so that emitted
tokens have the model's distribution.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from lade.core.proposals import Rule
from lade.core.request import Verdict
from lade.core.tree import Draft


class Walk:
    """A walk from the root along the model's choices.

    Args:
        draft: a node outside its queries has no logits and ends the walk; nodes before the first query are accepted.

    Attributes:
        path: accepted nodes; the next token is chosen after the last one.
        tokens: chosen so far.
    """

    __slots__ = ("_draft", "_queried", "path", "tokens")

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._queried = range(len(draft)) if len(draft.queries) == len(draft) else set(draft.queries)
        self.path, self.tokens = list(range(draft.queries[0] + 1)), list[int]()

    def follow(self, token: int, ended: bool) -> bool:
        """Take the token that was chosen after the path, and whether it ended the text. Returns whether the walk goes
        on."""
        self.tokens.append(token)
        child = None if ended else self._draft.child(self.path[-1], token)
        if child is None or child not in self._queried:
            return False
        self.path.append(child)
        return True

    @property
    def verdict(self) -> Verdict:
        return Verdict(self.path, self.tokens)


def walk(draft: Draft, choose: Callable[[int], int], emit: Callable[[int], bool]) -> Verdict:
    """Walk to the end.

    Args:
        choose: node -> the token that plain decoding chooses after it.
        emit: takes the next token of the text; returns whether the request is finished.
    """
    way = Walk(draft)
    token = choose(way.path[-1])
    while way.follow(token, emit(token)):
        token = choose(way.path[-1])
    return way.verdict


@dataclass(frozen=True, slots=True)
class Candidates:
    """Acceptance rule of speculative sampling, for one or several candidates that are tried in turn.

    Candidate x is accepted with probability min(1, p(x) / q(x)), p of the target and q of the draft; else p becomes the
    residual norm(max(p - q, 0)) for the next candidate. If none is accepted, the token is drawn from the last p. One
    candidate: Leviathan et al., arXiv 2211.17192. Several: Yang et al., arXiv 2401.06706.

    Attributes:
        replacement: whether candidates are drawn with replacement; if not, a rejected one is removed from q.
    """

    replacement: bool

    def judge(
        self, target: torch.Tensor, draft: torch.Tensor, drawn: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`lade.core.proposals.Rule.judge`."""
        accepted = []
        for tokens in drawn.unbind(1):
            exists, index = tokens[:, None] >= 0, tokens.clamp(min=0)[:, None]  # [M, 1]
            ratio = (target.gather(1, index) / draft.gather(1, index)).nan_to_num(0.0).clamp(max=1.0)
            accepted.append(torch.where(exists, ratio, 0.0))
            target = torch.where(exists, _residual(target, draft), target)
            if not self.replacement:
                draft = torch.where(exists, _without(draft, index), draft)
        return torch.cat(accepted, dim=1), target


def decide(rule: Rule, target: torch.Tensor, draft: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
    """[M] tokens: the first accepted candidate, else a draw from the residual; arguments as of `Rule.judge`.

    Random numbers come from the device's default generator, which sampling uses too.
    """
    probabilities, residual = rule.judge(target, draft, drawn)
    accepted = torch.rand_like(probabilities) < probabilities
    first = accepted.int().argmax(1, keepdim=True)
    return torch.where(accepted.any(1, keepdim=True), drawn.gather(1, first), torch.multinomial(residual, 1))[:, 0]


def _residual(target: torch.Tensor, draft: torch.Tensor) -> torch.Tensor:
    """norm(max(p - q, 0)); p where both are equal, as nothing is rejected then."""
    left = (target - draft).clamp(min=0)
    total = left.sum(-1, keepdim=True)
    return torch.where(total > 0, left / total, target)


def _without(draft: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """q without one token, renormalised; zeros where it has no other."""
    left = draft.scatter(1, index, 0.0)
    return left / left.sum(-1, keepdim=True).clamp(min=torch.finfo(left.dtype).tiny)
