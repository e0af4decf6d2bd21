"""Steps of candidate trees from ranks alone: against a naive walk, and against real multi-candidate decoding."""

from copy import deepcopy
from itertools import accumulate
from operator import mul

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from stories import PROMPTS
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import lade
from lade.applications.search.ranks import ranks_of
from lade.applications.search.widths import (
    acceptance,
    best,
    best_by_depth,
    best_by_first,
    nodes_of,
    steps_of,
    trees,
)

pytestmark = pytest.mark.usefixtures("one_thread")
TEXTS = st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=12), min_size=1, max_size=3)


def naive(ranks: list[int], widths: tuple[int, ...]) -> int:
    """Steps of one text: the first token is the prefill's."""
    at, steps = 0, 0
    while at < len(ranks):
        accepted = 0
        while accepted < len(widths) and at + accepted < len(ranks) and ranks[at + accepted] < widths[accepted]:
            accepted += 1
        at, steps = at + accepted + 1, steps + 1
    return steps


@settings(max_examples=30)
@given(TEXTS, st.integers(1, 9))
def test_every_tree_has_the_steps_of_a_naive_walk(texts: list[list[int]], nodes: int) -> None:
    found = trees(texts, nodes)
    assert len({tree.widths for tree in found}) == len(found)
    for tree in found:
        assert tree.nodes == nodes_of(tree.widths) == sum(accumulate(tree.widths, mul)) <= nodes
        assert tree.counts == tuple((len(ranks) + 1, naive(ranks, tree.widths)) for ranks in texts)


def test_all_trees_of_few_nodes_are_tried() -> None:
    assert [tree.widths for tree in trees([[0]], 4)] == [
        (1,), (1, 1), (1, 1, 1), (1, 1, 1, 1), (1, 1, 2), (1, 2), (1, 3), (2,), (2, 1), (3,), (4,),
    ]  # fmt: skip


@pytest.mark.parametrize("widths", [(1, 1), (3, 1, 2)])
def test_steps_are_those_of_multi_candidate_decoding(
    shipped: tuple[PreTrainedModel, PreTrainedTokenizerBase], widths: tuple[int, ...]
) -> None:
    model, tokenizer = shipped
    draft = deepcopy(model)
    draft.model.layers = draft.model.layers[:4]
    draft.config.num_hidden_layers = 4
    arguments = {"max_new_tokens": 40, "do_sample": False, "eos_token_id": None}
    for prompt in PROMPTS[:1]:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        ranks = ranks_of(model, draft, ids[0].tolist(), arguments)
        given = {"attention_mask": torch.ones_like(ids), "method": lade.MultiCandidate(draft, widths=widths)}
        lade.generate(model, ids, **given, **arguments)
        stats = lade.last_stats()
        assert stats is not None
        assert len(ranks) == 39
        assert stats.steps == naive(ranks, widths) < 39


def test_a_token_that_the_draft_model_does_not_have_is_never_accepted(
    shipped: tuple[PreTrainedModel, PreTrainedTokenizerBase],
) -> None:
    model, tokenizer = shipped
    draft = deepcopy(model)
    draft.lm_head = torch.nn.Linear(draft.config.hidden_size, 3, bias=False)
    ids = tokenizer(PROMPTS[0], return_tensors="pt").input_ids[0].tolist()
    ranks = ranks_of(model, draft, ids, {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None})
    assert ranks == [3] * 7
    assert ranks_of(model, model, ids, {"max_new_tokens": 1, "do_sample": False}) == []


def test_the_acceptance_is_the_share_of_small_ranks() -> None:
    texts = [[0, 1, 2, 3], [0, 0]]
    assert [acceptance(texts, k).median for k in (1, 2, 4)] == [0.5, pytest.approx(4 / 6), 1.0]
    assert acceptance(texts, 1).low is None  # fewer than six texts
    many = acceptance([[0, 1], [0, 0]] * 6, 1)
    assert many.low is not None
    assert many.low < 0.75


def test_the_best_are_those_with_the_fewest_steps_and_then_nodes() -> None:
    found = trees([[1, 0, 0, 1, 0, 0]], 6)
    assert (best(found).widths, best(found).counts) == ((2, 1), ((7, 2),))
    firsts = best_by_first(found)
    assert {first: tree.widths for first, tree in firsts.items()} == {
        1: (1, 1, 2, 1), 2: (2, 1), 3: (3, 1), 4: (4,), 5: (5,), 6: (6,),
    }  # fmt: skip
    assert [tree.widths for tree in best_by_depth(found)] == [(2,), (2, 1)]
    assert steps_of([]) == 0


@pytest.mark.parametrize(("texts", "nodes", "message"), [([[]], 4, "texts must be"), ([[0]], 0, "nodes must be")])
def test_nothing_to_search_is_refused(texts: list[list[int]], nodes: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        trees(texts, nodes)
