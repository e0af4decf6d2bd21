"""Law 4: in half precision texts part at near-ties only, and the audit tells a near-tie from a wrong token."""

from functools import cache

import pytest
import torch
from families import BRANCHABLE
from tiny import tiny_model, words

import lade
import lade.models
from lade.measure.audit import parting

LLAMA = next(family for family in BRANCHABLE if family.name == "llama")
CONFIG = lade.LookaheadConfig(mode="lookahead", window=5, ngram=4)


@cache
def shipped_in(dtype):
    return lade.models.load("stories260K", dtype=dtype)[0]


def both_ways(model, inputs, new_tokens):
    settings = {"max_new_tokens": new_tokens, "do_sample": False}
    return model.generate(**inputs, **settings)[0], lade.generate(model, **inputs, config=CONFIG, **settings)[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("seed", range(4))
def test_half_precision_parts_only_where_rounding_explains_it(dtype, seed):
    model = shipped_in(dtype)
    generator = torch.Generator().manual_seed(seed)
    ids = torch.cat([torch.tensor([[1]]), torch.randint(3, 500, (1, 7), generator=generator)], dim=1)
    plain, ahead = both_ways(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, 60)
    assert lade.last_stats().fallback is None
    found = parting(model, plain, ahead, ids.shape[1])
    assert found is None or found.explained, found
    assert found is None or found.as_dict()["ulps"] == found.gap / found.ulp


def test_equal_texts_do_not_part():
    model, inputs = tiny_model(LLAMA), words(6)
    plain, ahead = both_ways(model, inputs, 24)
    assert parting(model, plain, ahead, 6) is None
    assert parting(model, plain, ahead[:20], 6) is None


def test_a_wrong_token_is_not_explained():
    model, inputs = tiny_model(LLAMA), words(6)
    plain, _ = both_ways(model, inputs, 24)
    wrong = plain.clone()
    wrong[15] = (wrong[15] + 1) % 64
    found = parting(model, plain, wrong, 6)
    assert found is not None
    assert (found.index, found.tokens) == (15, (int(plain[15]), int(wrong[15])))
    assert not found.explained
    logits = model(plain[None, :15]).logits[0, -1]
    top = logits.topk(2).values
    assert found.gap == pytest.approx((top[0] - top[1]).item(), abs=1e-4)
    assert found.ulp == pytest.approx(torch.finfo(torch.float32).eps * logits.abs().max().item(), rel=1e-3)
    assert found.ulps == found.gap / found.ulp
