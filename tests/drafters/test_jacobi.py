"""The lookahead window: its layout and its shift as drawn in the module, against lists of lists."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lade import LookaheadConfig
from lade.core.request import Request, Verdict
from lade.core.tree import Draft
from lade.drafters.jacobi import JacobiDrafter

PROMPT = list(range(1000, 2000))  # so many words that no two columns hold the same one


def drafter_of(window: int, ngram: int, **config: Any) -> JacobiDrafter:
    return JacobiDrafter(LookaheadConfig(mode="lookahead", window=window, ngram=ngram, **config).settled())


def request_of(drafter: JacobiDrafter, prompt: Sequence[int], root: int) -> Request:
    request = Request(row=0, tokens=[*prompt, root], prompt_length=len(prompt), limit=10_000)
    drafter.start(request)
    return request


class Says:
    """Predictions by node, for the nodes whose logits were asked for."""

    def __init__(self, drafts: Sequence[Draft], tokens: Sequence[dict[int, int]]) -> None:
        self.drafts, self.tokens = drafts, tokens

    def greedy(self, slot: int, node: int) -> int:
        assert node in self.drafts[slot].queries
        return self.tokens[slot][node]


def one_step(drafter: JacobiDrafter, request: Request, says: dict[int, int], emitted: Sequence[int]) -> None:
    """Draft, hear the predictions, and go on with the emitted tokens, as if the walk had visited some nodes."""
    drafts = drafter.draft([request], [1000])
    request.tokens += emitted
    drafter.observe([request], drafts, [Verdict(list(range(len(emitted))), list(emitted))], Says(drafts, [says]))


def words_of(draft: Draft, node: int) -> tuple[int, ...]:
    return () if node == 0 else (*words_of(draft, draft.parents[node]), draft.tokens[node])


# As drawn: W = 4, N = 4


@pytest.fixture
def drawn() -> tuple[JacobiDrafter, Request, Draft]:
    drafter = drafter_of(4, 4)
    request = request_of(drafter, PROMPT, root=7)
    return drafter, request, drafter.draft([request], [1000])[0]


def levels_of(draft: Draft) -> list[list[int]]:
    """Level by level, the root first, of a draft that is nothing but a window of W = N = 4."""
    assert len(draft) == 12  # W (N - 1)
    return [draft.tokens[start : start + 4] for start in (0, 4, 8)]


def test_layout(drawn: tuple[JacobiDrafter, Request, Draft]) -> None:
    draft = drawn[2]
    assert draft.tokens[0] == 7
    assert draft.parents == [-1, 0, 1, 2, 0, 1, 2, 3, 4, 5, 6, 7]
    assert draft.depths == [0, 1, 2, 3, 1, 2, 3, 4, 2, 3, 4, 5]  # level l, column i: root + l + i
    assert draft.sources == ["root"] + ["window"] * 11
    assert set(draft.tokens[1:]) <= set(PROMPT)


def test_questions(drawn: tuple[JacobiDrafter, Request, Draft]) -> None:
    """Logits of the last level, which is next step's; of level 0 and the first column, as they are candidates too."""
    assert {0, 1, 2, 3} | {4, 8} | {8, 9, 10, 11} == set(drawn[2].queries)


def test_shift(drawn: tuple[JacobiDrafter, Request, Draft]) -> None:
    """Levels move up by one and one column to the left; what is predicted after the last level is the new last one."""
    drafter, request, draft = drawn
    for root in (20, 21, 22, 23):
        old = levels_of(draft)
        new = [root * 100 + column for column in range(4)]
        one_step(drafter, request, dict(zip((8, 9, 10, 11), new, strict=True)), [root])
        draft = drafter.draft([request], [1000])[0]
        assert levels_of(draft) == [[root, *old[1][1:]], old[2], new]


def test_shift_is_one_column_however_many_tokens_were_accepted(drawn: tuple[JacobiDrafter, Request, Draft]) -> None:
    drafter, request, draft = drawn
    old = levels_of(draft)
    one_step(drafter, request, {8: 1, 9: 2, 10: 3, 11: 4}, [20, 21, 22])
    assert levels_of(drafter.draft([request], [1000])[0]) == [[22, *old[1][1:]], old[2], [1, 2, 3, 4]]


@pytest.mark.parametrize("accepted", [1, 2, 3, 4, 5, 9])
def test_shift_by_what_was_accepted(accepted: int) -> None:
    """With ALWAYS_FWD_ONE=0; what falls open on the right is filled from the prompt."""
    drafter = drafter_of(4, 4, always_forward_one=False)
    request = request_of(drafter, PROMPT, root=7)
    old = levels_of(drafter.draft([request], [1000])[0])
    one_step(drafter, request, {8: 1, 9: 2, 10: 3, 11: 4}, range(20, 20 + accepted))
    levels = levels_of(drafter.draft([request], [1000])[0])
    kept = max(0, 4 - (accepted - 1))
    expected = [old[1], old[2], [1, 2, 3, 4]]
    assert levels[0][0] == 19 + accepted
    for level, before in zip(levels, expected, strict=True):
        skipped = 1 if before is old[1] else 0  # level 0 begins with the root
        assert level[skipped:kept] == before[accepted - 1 + skipped :]
        assert set(level[max(skipped, kept) :]) <= set(PROMPT)


def test_columns_become_ngrams(drawn: tuple[JacobiDrafter, Request, Draft]) -> None:
    """Each column was an n-gram: level 0, the levels below it, the prediction; found again when its key is the root."""
    drafter, request, draft = drawn
    level0, level1, level2 = levels_of(draft)
    new = [1, 2, 3, 4]
    one_step(drafter, request, dict(zip((8, 9, 10, 11), new, strict=True)), [99])
    for column in range(4):
        request.tokens.append(level0[column])
        draft = drafter.draft([request], [1000])[0]
        gram = (level1[column], level2[column], new[column])
        nodes = [node for node in range(len(draft)) if words_of(draft, node) in (gram[:1], gram[:2], gram)]
        assert len(nodes) == 3
        assert set(nodes) <= set(draft.queries)
        assert [draft.sources[node] for node in nodes] == ["ngram"] * 3


def test_ngram_and_window_share_nodes(drawn: tuple[JacobiDrafter, Request, Draft]) -> None:
    """Where the text goes on as level 0 said, the newest n-gram is a column of the moved window: no node twice."""
    drafter, request, draft = drawn
    one_step(drafter, request, {8: 1, 9: 2, 10: 3, 11: 4}, [draft.tokens[1]])
    draft = drafter.draft([request], [1000])[0]
    assert draft.sources.count("ngram") == 3
    assert len(draft) == 12


# Any W and N, against lists


@dataclass
class Lists:
    """The window with every open place filled by the prompt's only word, and the n-grams in order of sight."""

    window: int
    ngram: int
    guesses: int
    filler: int
    shifts_once: bool
    levels: list[list[int]] = field(init=False)
    grams: list[tuple[int, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.levels = [[self.filler] * (self.window - (level == 0)) for level in range(self.ngram - 1)]

    def columns(self, depth: int) -> int:
        """How many columns fit whole: column i's last token lies at depth i + N - 2."""
        return sum(column + self.ngram - 2 <= depth for column in range(self.window))

    def column(self, index: int) -> tuple[int, ...]:
        """Its words from the root on."""
        return (*self.levels[0][:index], *(level[index] for level in self.levels[1:]))

    def words(self, root: int, depth: int) -> set[tuple[int, ...]]:
        seen = [gram[1:] for gram in reversed(self.grams) if gram[0] == root]
        paths = [guess[:depth] for guess in list(dict.fromkeys(seen))[: self.guesses]]
        paths += [self.column(index) for index in range(self.columns(depth))]
        return {path[:length] for path in paths for length in range(len(path) + 1)} | {()}

    def observe(self, root: int, new: list[int], accepted: int) -> None:
        above = [[root, *self.levels[0]], *self.levels[1:], new]
        self.grams += [tuple(level[column] for level in above) for column in range(len(new))]
        if new:
            moved = [level[0 if self.shifts_once else accepted - 1 :] for level in above[1:]]
            self.levels = [level + [self.filler] * (self.window - len(level)) for level in moved]
            del self.levels[0][0]


@settings(max_examples=80)
@given(
    window=st.integers(1, 5),
    ngram=st.integers(2, 5),
    guesses=st.integers(1, 4),
    once=st.booleans(),
    data=st.data(),
)
def test_drafts_are_the_lists(window: int, ngram: int, guesses: int, once: bool, data: st.DataObject) -> None:
    """Every draft holds exactly the n-grams and the columns, each cut at the depth that is still allowed."""
    drafter = drafter_of(window, ngram, guesses=guesses, always_forward_one=once)
    request, lists = request_of(drafter, [5], root=5), Lists(window, ngram, guesses, 5, once)
    tokens = st.integers(4, 6)
    for _ in range(data.draw(st.integers(1, 8))):
        root, depth = request.tokens[-1], data.draw(st.integers(0, 10))
        drafts = drafter.draft([request], [depth])
        words = [words_of(drafts[0], node) for node in range(len(drafts[0]))]
        assert len(words) == len(set(words))
        assert set(words) == lists.words(root, depth)
        assert max(drafts[0].depths) <= depth
        ends = [words.index(lists.column(column)) for column in range(lists.columns(depth))]
        says = {end: data.draw(tokens) for end in ends}
        emitted = data.draw(st.lists(tokens, min_size=1, max_size=ngram))
        request.tokens += emitted
        verdict = Verdict([0] * len(emitted), emitted)
        drafter.observe([request], drafts, [verdict], Says(drafts, [says]))
        lists.observe(root, [says[end] for end in ends], len(emitted))


@pytest.mark.parametrize("depth", range(8))
def test_columns_are_cut_near_the_end(depth: int) -> None:
    """W = 4, N = 4: no column fits below depth 2, all four from depth 5 on."""
    drafter = drafter_of(4, 4)
    draft = drafter.draft([request_of(drafter, PROMPT, root=7)], [depth])[0]
    columns = min(4, max(0, depth - 1))
    assert len(draft) == max(1, 3 * columns)
    assert max(draft.depths) <= depth


def test_smallest_window() -> None:
    """W = 1, N = 2: nothing but the root; its own prediction is the only n-gram."""
    drafter = drafter_of(1, 2)
    request = request_of(drafter, PROMPT, root=7)
    assert len(drafter.draft([request], [1000])[0]) == 1
    one_step(drafter, request, {0: 8}, [8])
    request.tokens.append(7)
    assert drafter.draft([request], [1000])[0].tokens == [7, 8]


# The pool's bound and what fills it


@pytest.mark.parametrize(("guesses", "expected"), [(1, 1), (3, 3), (7, 7), (-1, 20)])
def test_guesses_per_step(guesses: int, expected: int) -> None:
    drafter = drafter_of(1, 2, guesses=guesses)
    request = request_of(drafter, PROMPT, root=7)
    for token in range(20):
        request.tokens.append(7)
        one_step(drafter, request, {0: token}, [7])
    assert len(drafter.draft([request], [1000])[0]) == 1 + expected


@pytest.mark.parametrize("pools", [True, False])
def test_prompt_in_the_pool(pools: bool) -> None:
    drafter = drafter_of(2, 3, pool_from_prompt=pools)
    request = request_of(drafter, [1, 2, 3, 1, 2, 4, 1], root=2)
    draft = drafter.draft([request], [1000])[0]
    words = {words_of(draft, node) for node in range(len(draft))}
    assert ({(3, 1), (4, 1)} <= words) is pools
    assert ("ngram" in draft.sources) is pools


@pytest.mark.parametrize("pools", [True, False])
def test_accepted_text_in_the_pool(pools: bool) -> None:
    drafter = drafter_of(1, 3, pool_from_prompt=pools)
    request = request_of(drafter, PROMPT, root=7)
    for emitted in ([8], [9, 10], [7]):
        end = len(drafter.draft([request], [1000])[0]) - 1
        one_step(drafter, request, {end: 0}, emitted)
    draft = drafter.draft([request], [1000])[0]
    assert ((8, 9) in [words_of(draft, node) for node in range(len(draft))]) is pools


# What it is alone with


def test_the_first_window_is_seeded() -> None:
    first, again, other = (drafter_of(9, 5, seed=seed) for seed in (1, 1, 2))
    drafts = [each.draft([request_of(each, PROMPT, root=7)], [1000])[0] for each in (first, again, other)]
    assert drafts[0].tokens == drafts[1].tokens
    assert drafts[0].tokens != drafts[2].tokens


def test_global_generators_are_left_alone() -> None:
    random.seed(3)
    before, torch_before = random.getstate(), torch.get_rng_state()
    drafter = drafter_of(4, 4, always_forward_one=False)
    request = request_of(drafter, PROMPT, root=7)
    one_step(drafter, request, {8: 1, 9: 2, 10: 3, 11: 4}, [20, 21, 22])
    assert random.getstate() == before
    assert torch.equal(torch.get_rng_state(), torch_before)


def test_requests_do_not_mix() -> None:
    """Two requests drafted together are drafted as each would be alone."""

    def run(prompts: list[list[int]]) -> list[list[int]]:
        drafter = drafter_of(3, 4, pool_from_prompt=True)
        requests = [request_of(drafter, prompt, root=prompt[0]) for prompt in prompts]
        for step in range(6):
            drafts = drafter.draft(requests, [9] * len(requests))
            emitted = [[request.tokens[step + 1], request.tokens[step]] for request in requests]
            for request, tokens in zip(requests, emitted, strict=True):
                request.tokens += tokens
            says = [{node: (31 * draft.tokens[node] + node) % 17 for node in draft.queries} for draft in drafts]
            verdicts = [Verdict([0, 1], tokens) for tokens in emitted]
            drafter.observe(requests, drafts, verdicts, Says(drafts, says))
        return [draft.tokens for draft in drafter.draft(requests, [9] * len(requests))]

    one, two = [1, 2, 3, 1, 2], [4, 2, 1, 4, 4, 2]
    assert run([one, two]) == run([one]) + run([two])
