"""The scored tree, without a model: against naive search over every path of the same mixtures, and drawn by hand."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from drafting import Entry, Says, path_of, remember, remembered
from hypothesis import given, settings
from hypothesis import strategies as st
from naivemixture import Expected, Naive, Table, bucket_of, context_of, match_bucket, weighted
from rowarrays import predicted

from lade import LookaheadConfig
from lade.core.request import Request, Verdict
from lade.core.tree import Draft
from lade.drafters import workspace
from lade.drafters.blend import TREE, BlendDrafter, TreePolicy
from lade.memory.context import LENGTHS
from lade.memory.pools import Pool, fresh_pool
from lade.memory.row import BEGUN, MASSES
from lade.memory.stages import BUCKETS, NAMES, SIBLINGS

pytestmark = pytest.mark.usefixtures("as_python")

VOCABULARY = range(4)
DEEP = 1000  # a depth limit that limits nothing
SCORED = ("reference", "suffix", "recycled", "warm")  # all but the window, whose nodes nobody scores, and counts


def after_two(seed: int, context: Sequence[int]) -> Entry:
    """What a model says that finds the same tokens likely after the same two tokens."""
    noise = random.Random(repr((seed, tuple(context[-2:]))))
    return noise.sample(VOCABULARY, k=len(VOCABULARY)), [0.6, 0.2, 0.1, 0.05]


def drafter_of(
    budget: int,
    warm: Table | None = None,
    pool: Callable[[str | None], Pool] = lambda tenant: fresh_pool(),
    sources: tuple[str, ...] = SCORED,
    policy: TreePolicy = TREE,
    **config: Any,
) -> BlendDrafter:
    settings = LookaheadConfig(mode="auto", sources=sources, **config).settled()
    arrays = None if warm is None else warm.arrays()
    return BlendDrafter(settings, budget, None if arrays is None else lambda _: arrays, pool, policy=policy)


def request_of(
    drafter: BlendDrafter,
    tokens: Sequence[int],
    prompt_length: int | None = None,
    row: int = 0,
    reference: Sequence[int] | None = None,
) -> Request:
    request = Request(row, list(tokens), len(tokens) - 1 if prompt_length is None else prompt_length, 10_000)
    request.reference = reference
    drafter.start(request)
    return request


def drafted(drafter: BlendDrafter, request: Request, depth: int = DEEP) -> Draft:
    return drafter.draft([request], [depth])[0]


def step(
    drafter: BlendDrafter, requests: Sequence[Request], depth: int, seed: int, noise: random.Random
) -> list[Expected]:
    """Draft, walk by choices that mostly are the model's best, and learn.

    Returns:
        What siblings of each text's last token say of the next one.
    """
    drafts = drafter.draft(requests, [depth] * len(requests))
    says = Says(lambda context: after_two(seed, context), drafts, [request.tokens for request in requests])
    verdicts, beside = [], []
    for draft, request in zip(drafts, requests, strict=True):
        path, tokens = [0], []
        while True:
            ranked = after_two(seed, [*request.tokens, *tokens])[0]
            tokens.append(noise.choices(ranked, [0.7, 0.2, 0.1, 0.0])[0])
            child = draft.children.get((path[-1], tokens[-1]))
            if child is None:
                break
            path.append(child)
        verdicts.append(Verdict(path, tokens))
        row, text = request.state.memory.row(), [*request.tokens]
        siblings = [node for node in range(1, request.state.size) if draft.parents[node] == path[-1]]
        said = [after_two(seed, [*text, *path_of(draft, node)]) for node in siblings]
        beside.append(weighted([*zip(row.floats[[MASSES + node for node in siblings]].tolist(), said, strict=True)]))
        request.tokens += tokens
    drafter.observe(requests, drafts, verdicts, says)
    return beside


@dataclass(frozen=True)
class Drawn:
    """A draft, and the probabilities of all paths that could have been in it."""

    draft: Draft
    paths: dict[tuple[int, ...], float]

    def found(self) -> list[float]:
        return [self.paths[path_of(self.draft, node)] for node in range(len(self.draft))]


WARM_TABLES = (None, Table((1, 2), (0.5, 0.25)), Table((3, 0, 1), (0.5, 0.25, 0.125), known=(0, 1)))
REFERENCES = (None, [0, 1, 2, 3] * 3, [2, 2, 0, 1, 3, 2, 0])
CASES = {
    "seed": st.integers(0, 999),
    "budget": st.integers(1, 24),
    "deepest": st.integers(0, 4),
    "warm": st.sampled_from(WARM_TABLES),
    "reference": st.sampled_from(REFERENCES),
}


def drawn(
    seed: int, budget: int, deepest: int, warm: Table | None, reference: list[int] | None, policy: TreePolicy
) -> Drawn:
    noise, pool = random.Random(seed), fresh_pool()
    drafter = drafter_of(budget, warm, lambda _: pool, policy=policy)
    for _ in range(seed % 3 + 1):  # the pool keeps what the first ones predicted
        request = request_of(drafter, noise.choices(VOCABULARY, k=6), reference=reference)
        siblings = Expected()
        for _ in range(seed % 7):
            (siblings,) = step(drafter, [request], DEEP, seed, noise)
    number = int(request.state.memory.row().ints[BEGUN])
    naive = Naive(pool, request.tokens, request.prompt_length + 1, warm, reference, number, siblings)
    return Drawn(drafted(drafter, request, deepest), naive.every_path(deepest))


@settings(max_examples=60)
@given(**CASES)
def test_without_child_prior_and_floors_the_tree_holds_the_likeliest_paths_in_order(
    seed: int, budget: int, deepest: int, warm: Table | None, reference: list[int] | None
) -> None:
    case = drawn(seed, budget, deepest, warm, reference, TreePolicy(child_prior=1.0, stage_floor=0.0))
    found = case.found()
    assert len(found) == min(budget, len(case.paths))
    assert all(before >= after * (1 - 1e-9) for before, after in pairwise(found))
    assert found == pytest.approx(sorted(case.paths.values(), reverse=True)[: len(found)])


@settings(max_examples=60)
@given(**CASES)
def test_no_path_is_passed_over_that_is_much_likelier(
    seed: int, budget: int, deepest: int, warm: Table | None, reference: list[int] | None
) -> None:
    """`child_prior` saves expansions: a path may wait, but only behind nodes that are nearly as likely."""
    policy = TreePolicy(stage_floor=0.0)
    case = drawn(seed, budget, deepest, warm, reference, policy)
    inside: set[tuple[int, ...]] = set()
    assert len(case.draft) == min(budget, len(case.paths))
    for node, probability in enumerate(case.found()):
        inside.add(path_of(case.draft, node))
        best = max((p for path, p in case.paths.items() if path not in inside and path[:-1] in inside), default=0.0)
        assert node + 1 == len(case.draft) or best * policy.child_prior <= probability * (1 + 1e-9)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 999),
    budget=st.integers(1, 48),
    depth=st.integers(0, 9),
    rows=st.integers(1, 3),
    warm=st.sampled_from(WARM_TABLES),
    ngram=st.integers(2, 5),
)
def test_laws_of_a_draft_at_every_step(
    seed: int, budget: int, depth: int, rows: int, warm: Table | None, ngram: int
) -> None:
    noise = random.Random(seed)
    references = [[0, 1, 2, 3, 3, 1], None, [2, 2, 2]]
    drafter = drafter_of(budget, warm, sources=(*SCORED, "window"), ngram=ngram)
    requests = [
        request_of(drafter, noise.choices(VOCABULARY, k=5), row=row, reference=references[row]) for row in range(rows)
    ]
    for _ in range(4):
        beside = step(drafter, requests, depth, seed, noise)
        drafts = drafter.draft(requests, [depth] * rows)
        for request, draft, siblings in zip(requests, drafts, beside, strict=True):
            _, tokens, masses = predicted(request.state.memory, SIBLINGS)
            assert dict(zip(tokens, masses, strict=True)) == pytest.approx(siblings)
            assert draft.tokens[0] == request.tokens[-1]
            assert 1 <= len(draft) <= budget
            assert max(draft.depths) <= depth
            assert all(parent < node for node, parent in enumerate(draft.parents))
            assert len({path_of(draft, node) for node in range(len(draft))}) == len(draft)
            assert draft.sources[0] == "root"
            assert set(draft.sources[1:]) <= {*NAMES}
            windowed = {node for node, source in enumerate(draft.sources) if source == "window"}
            assert set(range(len(draft))) - windowed <= set(draft.queries)


# By hand


def fixed_pool(weight: float = 0.5) -> Pool:
    """Every stage takes the same share of what is left."""
    pool = fresh_pool()
    pool.calibration.numbers[:BUCKETS] = weight
    return pool


@pytest.mark.parametrize(("budget", "depth"), [(1, DEEP), (40, 0), (1, 0)])
def test_the_root_alone(budget: int, depth: int) -> None:
    drafter = drafter_of(budget, Table((1, 2), (0.5, 0.4)))
    draft = drafted(drafter, request_of(drafter, [5, 6, 7]), depth)
    assert (draft.tokens, draft.parents, draft.queries, draft.sources) == ([7], [-1], [0], ["root"])


def test_with_nothing_known_there_is_nothing_to_draft() -> None:
    drafter = drafter_of(40)
    assert len(drafted(drafter, request_of(drafter, [5, 6, 7]))) == 1
    drafter = drafter_of(40, Table((1,), (0.9,), known=()))
    assert len(drafted(drafter, request_of(drafter, [5, 6, 7]))) == 1


def test_sources_that_agree_add_up_in_one_node() -> None:
    """8 is nobody's favourite; weights of one half make it 0.5 x 0.45 + 0.25 x 0.4, against 0.5 x 0.55 for 7."""
    pool = fixed_pool()
    remember(pool, {(6,): ([7, 8], [0.55, 0.45])})
    drafter = drafter_of(4, Table((9, 8), (0.5, 0.4)), pool=lambda _: pool)
    draft = drafted(drafter, request_of(drafter, [6]), 1)
    assert draft.tokens == [6, 8, 7, 9]
    assert draft.sources == ["root", "recycled-1", "recycled-1", "warm"]


def test_a_node_belongs_to_the_most_specific_source_that_expects_it() -> None:
    pool = fixed_pool()
    remember(pool, {(5, 6): ([7], [0.1])})
    drafter = drafter_of(2, Table((7,), (0.9,)), lambda _: pool)
    request = request_of(drafter, [4, 5, 6], prompt_length=1, reference=[5, 6, 7])
    assert drafted(drafter, request).sources == ["root", "reference"]
    plain = drafter_of(2, Table((7,), (0.9,)), pool=lambda _: pool)
    assert drafted(plain, request_of(plain, [5, 6])).sources == ["root", "recycled-2"]


def test_paths_that_share_a_prefix_share_its_nodes() -> None:
    pool = fixed_pool(0.9)
    remember(pool, {(1, 2): ([3], [1.0]), (2, 3): ([4, 5], [0.6, 0.4])})
    drafter = drafter_of(4, pool=lambda _: pool)
    draft = drafted(drafter, request_of(drafter, [1, 2]))
    assert (draft.tokens, draft.parents) == ([2, 3, 4, 5], [-1, 0, 1, 1])


def test_a_tree_with_room_left_is_followed_by_one_that_leaves_nothing_out() -> None:
    """The last tree decides how far down to look: sure of its nodes, it makes the next one pass over the others."""
    drafter = drafter_of(40, Table((1, 2, 3), (0.5, 0.01, 0.001)))
    request = request_of(drafter, [5, 6, 7])
    whole = drafted(drafter, request, 2)
    assert len(whole) == 13
    request.state.full, request.state.cut = True, 0.5
    assert drafted(drafter, request, 2).tokens == [7, 1, 1]
    assert not request.state.full
    assert drafted(drafter, request, 2) == whole


def test_the_least_likely_path_is_no_division_by_zero() -> None:
    """1e-296 is still drafted, 1e-333 is no number any more."""
    drafter = drafter_of(20, Table((1, 2), (1e-37, 0.0)), pool=lambda _: fixed_pool(1.0))
    assert drafted(drafter, request_of(drafter, [5, 6, 7])).tokens == [7, *[1] * 8]


def test_a_text_that_repeats_itself_is_drafted_as_deep_as_the_budget_reaches() -> None:
    drafter = drafter_of(30)
    draft = drafted(drafter, request_of(drafter, [1, 2, 3] * 20))
    assert draft.tokens == ([3, 1, 2] * 10)[:30]
    assert draft.sources[1:] == ["suffix"] * 29


def test_before_any_output_a_reference_is_read_from_its_beginning() -> None:
    drafter = drafter_of(4)
    draft = drafted(drafter, request_of(drafter, [1, 2, 7], prompt_length=2, reference=[7, 8, 9, 5]))
    assert draft.tokens == [7, 8, 9, 5]
    assert draft.sources == ["root", *["reference"] * 3]


def test_each_row_reads_its_own_reference() -> None:
    drafter, references = drafter_of(3), ([7, 5, 4], [7, 8, 9], None)
    requests = [request_of(drafter, [1, 7], prompt_length=1, reference=reference) for reference in references]
    drafts = drafter.draft(requests, [DEEP] * 3)
    assert [draft.tokens for draft in drafts] == [[7, 5, 4], [7, 8, 9], [7]]


def test_every_row_has_its_own_depth_limit() -> None:
    drafter = drafter_of(9, Table((1,), (0.9,)))
    requests = [request_of(drafter, [1, 7], row=row) for row in range(3)]
    drafts = drafter.draft(requests, [0, 2, 5])
    assert [max(draft.depths) for draft in drafts] == [0, 2, 5]


def test_rows_that_share_no_pool_learn_nothing_of_each_other() -> None:
    drafter, noise = drafter_of(8), random.Random(0)
    one, other = (request_of(drafter, [1, 2, 3], row=row) for row in range(2))
    for _ in range(3):
        step(drafter, [one], DEEP, 0, noise)
    assert len(drafted(drafter, one)) > 1
    assert len(drafted(drafter, other)) == 1


@pytest.mark.parametrize("pools", [[fresh_pool()] * 2, [fresh_pool(), fresh_pool()]], ids=("shared", "own"))
def test_pools_are_read_and_changed_under_their_locks(pools: list[Pool], monkeypatch: pytest.MonkeyPatch) -> None:
    used = []

    def checked(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any) -> None:
            assert all(pool.lock._is_owned() for pool in pools)
            used.append(name)
            call(*arguments)

        return called

    for name in ("DRAFT", "LEARN"):
        monkeypatch.setattr(workspace, name, checked(name, getattr(workspace, name)))
    left = iter(pools)
    drafter = drafter_of(8, pool=lambda _: next(left))
    step(drafter, [request_of(drafter, [1, 2, 3], row=row) for row in range(2)], DEEP, 0, random.Random(0))
    assert used == ["DRAFT", "LEARN"]
    assert not any(pool.lock._is_owned() for pool in pools)


# Learning


def heard(drafter: BlendDrafter, request: Request, chosen: Sequence[int]) -> tuple[Draft, list[int]]:
    """Draft and walk by these choices; the draft, and the text that it hung from."""
    draft, before = drafted(drafter, request), list(request.tokens)
    path = [0]
    for token in chosen[:-1]:
        path.append(draft.children[path[-1], token])
    request.tokens += chosen
    says = Says(lambda context: after_two(0, context), [draft], [before])
    drafter.observe([request], [draft], [Verdict(path, list(chosen))], says)
    return draft, before


def test_every_node_teaches_what_the_model_said_after_it() -> None:
    pool = fixed_pool()
    drafter = drafter_of(12, Table((1, 2, 3), (0.4, 0.3, 0.2)), pool=lambda _: pool)
    draft, before = heard(drafter, request_of(drafter, [0, 1, 2]), [1, 2, 0])
    assert len(draft) == 12
    for node in range(len(draft)):
        context = (*before, *path_of(draft, node))
        for length in LENGTHS[:3]:
            assert remembered(pool, length)[context_of(context)[-length:]][0] == after_two(0, context)[0]


def test_the_accepted_path_is_what_was_seen_last() -> None:
    """Where a rejected node has the same last tokens, it is the accepted one's prediction that stays."""
    pool = fixed_pool()
    drafter = drafter_of(12, Table((1, 2, 3), (0.4, 0.3, 0.2)), pool=lambda _: pool)
    draft, before = heard(drafter, request_of(drafter, [0, 1, 2, 3]), [1, 2, 0])
    path = [0, draft.children[0, 1], draft.children[draft.children[0, 1], 2]]
    contexts = [context_of([*before, *path_of(draft, node)]) for node in path]
    assert [*remembered(pool, 4)][-3:] == contexts


def test_what_drafting_remembers_keeps_its_capacity() -> None:
    pool, noise = fresh_pool(10), random.Random(0)
    drafter = drafter_of(6, pool=lambda _: pool)
    request = request_of(drafter, [1, 2, 3])
    for _ in range(60):
        step(drafter, [request], DEEP, 0, noise)
        assert all(len(remembered(pool, length)) < 16 for length in LENGTHS)


def test_a_source_that_is_always_wrong_is_soon_passed_over() -> None:
    """The text is 8 8 8 4 over and over; in the reference three are always followed by a fourth.

    The first miss counts for longer matches, since all output was the beginning of the reference."""
    pool = fixed_pool()
    drafter = drafter_of(2, Table((4,), (0.9,)), lambda _: pool)
    request = request_of(drafter, [8, 8, 8, 8], prompt_length=1, reference=[8] * 400)
    bucket = bucket_of("reference", 0, match_bucket(3))
    before = pool.calibration.numbers[bucket]
    assert drafted(drafter, request).tokens == [8, 8]
    for _ in range(220):
        heard(drafter, request, [4 if request.tokens[-3:] == [8, 8, 8] else 8])
    assert pool.calibration.numbers[bucket] < before / 2


def test_a_shared_pool_knows_what_the_last_request_learned() -> None:
    pool, noise = fresh_pool(), random.Random(0)
    drafter = drafter_of(8, pool=lambda _: pool)
    first = request_of(drafter, [1, 2, 3])
    assert len(drafted(drafter, first)) == 1
    for _ in range(10):
        step(drafter, [first], DEEP, 0, noise)
    assert len(drafted(drafter, request_of(drafter, [1, 2, 3]))) == 8
    stranger = drafter_of(8)
    assert len(drafted(stranger, request_of(stranger, [1, 2, 3]))) == 1
