"""What stands before an entry: candidates from the model and its texts, chosen by likelihood there."""

import copy

import pytest
import torch
from families import BY_NAME
from tiny import tiny_model
from transformers import PreTrainedModel

from lade.memory.warm.prefix import COMMON, candidates, likeliest_prefix, token_masses
from lade.memory.warm.table import compute, new_part, plan_of
from lade.memory.warm.texts import WarmTexts
from lade.memory.warm.turns import Turns

TOP = 4


def model_with(begins: int | None, ends: int | None) -> PreTrainedModel:
    model = copy.deepcopy(tiny_model(BY_NAME["llama"]))
    for config in (model.generation_config, model.config):
        config.bos_token_id, config.eos_token_id = begins, ends
    return model


@torch.no_grad()
def texts_after(model: PreTrainedModel, *prefix: int) -> WarmTexts:
    """One text of all 64 tokens, with the model's predictions after the prefix and each token alone."""
    tokens = torch.arange(64)
    ids = torch.cat([torch.tensor([prefix], dtype=torch.int64).expand(64, -1), tokens[:, None]], dim=1)
    best = model(input_ids=ids).logits[:, -1].softmax(-1).topk(TOP)
    counted = torch.ones(1, 64, dtype=torch.bool)
    return WarmTexts(tokens[None].int(), best.indices[None].int(), best.values[None], counted)


@pytest.mark.parametrize("prefix", [(), (7,), (9,), (20, 21, 22)])
def test_the_prefix_that_the_texts_agree_with_is_chosen(prefix: tuple[int, ...]) -> None:
    model = model_with(7, 9)
    texts = texts_after(model, *prefix)
    found = candidates(model, Turns((20, 21, 22), (30, 31)), texts)
    assert likeliest_prefix(model, found, texts, rows=24) == prefix


def test_candidates_come_from_the_model_its_template_and_its_texts() -> None:
    model = model_with(7, 9)
    texts = texts_after(model)
    found = candidates(model, Turns((20, 21, 22), (30, 31)), texts)
    common = token_masses(texts, 64).topk(COMMON).indices.tolist()
    assert found[:3] == [(), (7,), (9,)]
    assert set(found) == {(), (7,), (9,), (20, 21, 22), (30, 31), *((token,) for token in common)}
    assert len(set(found)) == len(found)


def test_places_that_a_template_fixes_do_not_count() -> None:
    model = model_with(7, 9)
    good, bad = texts_after(model, 9), texts_after(model, 7)
    parts = [torch.cat([getattr(good, name), getattr(bad, name)]) for name in ("written", "tokens", "probabilities")]
    counted = torch.ones(2, 64, dtype=torch.bool)
    counted[0, ::2] = False
    counted[1] = ~counted[0]
    for row, prefix in ((0, (9,)), (1, (7,))):
        mask = counted.clone()
        mask[1 - row] = False
        assert likeliest_prefix(model, [(7,), (9,)], WarmTexts(*parts, mask), rows=24) == prefix


def test_predictions_that_are_no_numbers_choose_nothing() -> None:
    model = model_with(7, 9)
    texts = texts_after(model)
    texts.counted[0, 7] = False
    with torch.no_grad():
        model.model.embed_tokens.weight[7] = float("nan")
    assert likeliest_prefix(model, [(7,), (9,)], texts, rows=24) == (9,)


@pytest.mark.usefixtures("short_texts")
def test_the_choice_is_kept_with_the_part() -> None:
    model = model_with(7, 9)
    part = new_part(plan_of(model, TOP))
    compute(model, TOP, part=part)
    assert part.prefix is not None
    tokens = torch.tensor([[*part.prefix, 5]])
    expected = model(input_ids=tokens).logits[0, -1].softmax(-1).topk(TOP)
    assert part.tokens[5].tolist() == expected.indices.tolist()
