"""The walk that verifies a draft and emits its tokens: both in one, since processors and stop rules decide it.

For drafts chosen with certainty: choose once per visited node as plain decoding would, then follow the child that
carries the chosen token. Every emitted token is the model's own choice, so greedy and sampled text are those of plain
decoding, and a full match of d tokens yields d + 1. For drafts that were drawn from a distribution an acceptance rule
chooses instead, so that the emitted token has the model's distribution over all that might have been drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from lade.core.proposals import Rule
from lade.core.request import Verdict
from lade.core.tree import Draft


def walk(draft: Draft, choose: Callable[[int], int], emit: Callable[[int], bool]) -> Verdict:
    """Follow the model's choices from the root.

    Args:
        draft: the verified draft; a node outside its queries ends the walk, as no logits speak for it.
        choose: node -> the token that plain decoding would choose after it.
        emit: takes the next token of the text; True means that the request is finished.
    """
    queried = set(draft.queries)
    path, tokens = [0], []
    while True:
        token = choose(path[-1])
        tokens.append(token)
        if emit(token):
            break
        child = draft.children.get((path[-1], token))
        if child is None or child not in queried:
            break
        path.append(child)
    return Verdict(path, tokens)


@dataclass(frozen=True, slots=True)
class Candidates:
    """Candidates are tried in turn; a refused one leaves what the draft had too little of.

    Candidate x is taken with probability min(1, p(x) / q(x)); else p becomes norm(max(p - q, 0)) for the next one. A
    token that none of them was is drawn from the last p. With one candidate this is speculative sampling (Leviathan et
    al., arXiv 2211.17192), with several multi-candidate speculative sampling (Yang et al., arXiv 2401.06706).

    Attributes:
        replacement: whether a token could be drawn again; where not, a refused one leaves q too.
    """

    replacement: bool

    def judge(
        self, target: torch.Tensor, draft: torch.Tensor, drawn: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`lade.core.proposals.Rule.judge`."""
        taken = []
        for tokens in drawn.unbind(1):
            there, at = tokens[:, None] >= 0, tokens.clamp(min=0)[:, None]  # [M, 1]
            share = (target.gather(1, at) / draft.gather(1, at)).nan_to_num(0.0).clamp(max=1.0)
            taken.append(torch.where(there, share, 0.0))
            target = torch.where(there, _residual(target, draft), target)
            if not self.replacement:
                draft = torch.where(there, _others(draft, at), draft)
        return torch.cat(taken, dim=1), target


def decide(rule: Rule, target: torch.Tensor, draft: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
    """[M] tokens: the first candidate that its coin takes, else a draw from what is left; arguments as of `Rule.judge`.

    Coins and draws come from the device's default generator, which sampling uses too.
    """
    shares, rest = rule.judge(target, draft, drawn)
    heads = torch.rand_like(shares) < shares
    first = heads.int().argmax(1, keepdim=True)
    return torch.where(heads.any(1, keepdim=True), drawn.gather(1, first), torch.multinomial(rest, 1))[:, 0]


def _residual(target: torch.Tensor, draft: torch.Tensor) -> torch.Tensor:
    """What the model has more of than the draft; its own law where they are the same, as nothing is refused then."""
    left = (target - draft).clamp(min=0)
    total = left.sum(-1, keepdim=True)
    return torch.where(total > 0, left / total, target)


def _others(draft: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """The draft's distribution once a token is gone; zeros where there was no other."""
    left = draft.scatter(1, at, 0.0)
    return left / left.sum(-1, keepdim=True).clamp(min=torch.finfo(left.dtype).tiny)
