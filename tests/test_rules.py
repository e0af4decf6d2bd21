"""Acceptance rules by enumeration: over all candidates that might be drawn, the emitted token has the target's law.

Nothing is drawn here: the probability of every outcome is added up. `broken` rules show that the sum would tell.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch import Tensor

from lade.core.proposals import Rule
from lade.core.tree import TreeBuilder
from lade.core.verify import Candidates, decide, walk

LAWS = {  # name: (p of the target, q of the draft)
    "alike": ([0.4, 0.3, 0.2, 0.1], [0.3, 0.3, 0.3, 0.1]),
    "unlike": ([0.45, 0.3, 0.2, 0.05], [0.15, 0.2, 0.25, 0.4]),
    "opposed": ([0.7, 0.2, 0.1, 0.0], [0.0, 0.1, 0.2, 0.7]),
    "apart": ([0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.5, 0.5]),
    "the same": ([0.4, 0.3, 0.2, 0.1], [0.4, 0.3, 0.2, 0.1]),
    "a certain draft": ([0.1, 0.2, 0.3, 0.4], [0.0, 1.0, 0.0, 0.0]),
    "a certain target": ([0.0, 0.0, 1.0, 0.0], [0.1, 0.2, 0.3, 0.4]),
    "two candidates at most": ([0.25, 0.25, 0.25, 0.25], [0.9, 0.1, 0.0, 0.0]),
    "nearly the same": ([0.4, 0.3, 0.2, 0.1], [0.4 - 1e-9, 0.3 + 1e-9, 0.2, 0.1]),
}
ERROR = 1e-6


def drawings(law: Sequence[float], count: int, replacement: bool) -> Iterator[tuple[list[int], float]]:
    """All ways of drawing `count` tokens in turn, and how likely each is; -1 where nothing was left to draw."""
    for tokens in itertools.product([*range(len(law)), -1], repeat=count):
        left, likely = list(law), 1.0
        for token in tokens:
            total = sum(left)
            likely *= left[token] / total if token >= 0 and total > 0 else float(token < 0 and total == 0)
            if not replacement and token >= 0:
                left[token] = 0.0
        if likely > 0:
            yield list(tokens), likely


def emitted(rule: Rule, p: Sequence[float], q: Sequence[float], count: int, replacement: bool) -> list[float]:
    """The law of the emitted token."""
    law = [0.0] * len(p)
    for tokens, likely in drawings(q, count, replacement):
        rows = [torch.tensor([row], dtype=torch.float64) for row in (p, q)]
        shares, rest = rule.judge(*rows, torch.tensor([tokens]))
        for token, share in zip(tokens, shares[0].tolist(), strict=True):
            assert 0 <= share <= 1
            law[token] += likely * share if token >= 0 else 0.0
            likely *= 1 - share
        for token, share in enumerate(rest[0].tolist()):
            law[token] += likely * share
    return law


def error(rule: Rule, name: str, count: int, replacement: bool) -> float:
    p, q = LAWS[name]
    return max(abs(a - b) for a, b in zip(emitted(rule, p, q, count, replacement), p, strict=True))


@pytest.mark.parametrize("replacement", [False, True], ids=("without", "with"))
@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("name", LAWS)
def test_candidates_keep_the_targets_law(name: str, count: int, replacement: bool) -> None:
    """One candidate is speculative sampling."""
    assert error(Candidates(replacement), name, count, replacement) < ERROR


@pytest.mark.parametrize("name", LAWS)
def test_following_a_certain_draft_keeps_the_targets_law(name: str) -> None:
    """Drafts chosen with certainty: the target's own draw is emitted, whether or not a candidate carries it."""
    p, _ = LAWS[name]
    law = [0.0] * len(p)
    builder = TreeBuilder(0)
    for token in (1, 3):
        builder.add_path(0, [token], "test")
    draft = builder.build()
    for first, second in itertools.product(range(len(p)), repeat=2):
        draws = iter([first, second])
        verdict = walk(draft, lambda node, draws=draws: next(draws), lambda token: False)  # type: ignore[misc]
        assert len(verdict.tokens) == (2 if first in (1, 3) else 1)
        law[verdict.tokens[0]] += p[first] * p[second]
    assert max(abs(a - b) for a, b in zip(law, p, strict=True)) < ERROR


# Rules that are wrong


class AlwaysTaken(Candidates):
    """The draft's law."""

    def judge(self, target: Tensor, draft: Tensor, drawn: Tensor) -> tuple[Tensor, Tensor]:
        shares, rest = super().judge(target, draft, drawn)
        return (drawn >= 0).to(shares), rest


class NoResidual(Candidates):
    """A draw from the target's law where a candidate was refused."""

    def judge(self, target: Tensor, draft: Tensor, drawn: Tensor) -> tuple[Tensor, Tensor]:
        return super().judge(target, draft, drawn)[0], target


class TargetsShare(Candidates):
    """Taken with the target's probability, as if the draft were certain."""

    def judge(self, target: Tensor, draft: Tensor, drawn: Tensor) -> tuple[Tensor, Tensor]:
        shares, rest = super().judge(target, draft, drawn)
        return torch.where(drawn >= 0, target.gather(1, drawn.clamp(min=0)), 0.0).to(shares), rest


class FreshTries(Candidates):
    """Every candidate is tried against the target's own law, as if none had been refused before."""

    def judge(self, target: Tensor, draft: Tensor, drawn: Tensor) -> tuple[Tensor, Tensor]:
        parts = [super(FreshTries, self).judge(target, draft, tokens[:, None]) for tokens in drawn.unbind(1)]
        return torch.cat([shares for shares, _ in parts], dim=1), parts[-1][1]


BROKEN: tuple[Callable[[bool], Rule], ...] = (AlwaysTaken, NoResidual, TargetsShare, FreshTries)


@pytest.mark.parametrize("replacement", [False, True], ids=("without", "with"))
@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_rule_shows(broken: Callable[[bool], Rule], replacement: bool) -> None:
    assert error(broken(replacement), "unlike", 2, replacement) > 100 * ERROR


@pytest.mark.parametrize("replacement", [False, True], ids=("without", "with"))
def test_the_rule_of_the_other_way_of_drawing_shows(replacement: bool) -> None:
    assert error(Candidates(not replacement), "unlike", 2, replacement) > 100 * ERROR


# From probabilities to a token


def test_the_first_candidate_that_its_coin_takes_is_emitted() -> None:
    class Fixed:
        def judge(self, target: Tensor, draft: Tensor, drawn: Tensor) -> tuple[Tensor, Tensor]:
            return torch.tensor([[0.0, 1.0, 1.0], [0.0, 0.0, 0.0], [1.0, 0.0, 1.0]]), torch.eye(4)[[3, 0, 3]]

    drawn = torch.tensor([[1, 2, 3], [1, 2, 3], [2, 1, -1]])
    nothing = torch.zeros(3, 4)
    assert decide(Fixed(), nothing, nothing, drawn).tolist() == [2, 0, 2]


def test_coins_come_from_the_default_generator() -> None:
    p, q = (torch.tensor([row] * 64) for row in LAWS["unlike"])
    drawn = torch.tensor([[3, 2]] * 64)
    tokens = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        tokens.append(decide(Candidates(False), p, q, drawn).tolist())
    assert tokens[0] == tokens[1] != tokens[2]
