"""Trees of any shape keep every family's text: no draft, however odd, may change what plain decoding writes."""

import pytest
import torch
from families import BRANCHABLE, BY_NAME, VOCAB, Family
from identity import Identity, PlainText, plain_text
from randomtrees import RandomTrees
from sidebyside import assert_looked_ahead
from tiny import FIRST_WORD, tiny_model, words

import lade

NEW_TOKENS = 14
WORDS = range(FIRST_WORD, VOCAB)
BATCHES = ((9,), (5, 9, 3))
COMPAT = ("llama", "mistral-sliding", "gemma3", "gpt2", "opt", "mixtral", "gpt_oss")
CASES = [
    pytest.param(
        family,
        attention,
        lengths,
        id=f"{family.name}-{attention}-{'padded' if lengths[1:] else 'alone'}",
        marks=[pytest.mark.compat] if family.name in COMPAT else [],
    )
    for family in BRANCHABLE
    for attention in family.attention
    for lengths in BATCHES[attention != family.attention[-1] :]  # a text alone with one of them
]
SAMPLED = ("llama", "mistral-sliding", "gemma3", "gpt2", "gpt_oss", "falcon", "llama4", "deepseek_v3")
SAMPLING = {"do_sample": True, "temperature": 0.7, "top_k": 8, "max_new_tokens": NEW_TOKENS}


def trees(plain: PlainText, seed: int) -> RandomTrees:
    return RandomTrees(plain.sequences[:, -NEW_TOKENS:].tolist(), WORDS, seed)


@pytest.mark.parametrize(("family", "attention", "lengths"), CASES)
def test_greedy(family: Family, attention: str, lengths: tuple[int, ...], identity: Identity) -> None:
    model, kwargs = tiny_model(family, attention), words(*lengths, seed=2) | {"max_new_tokens": NEW_TOKENS}
    plain = plain_text(model, **kwargs)
    method = trees(plain, seed=len(lengths))
    ours = lade.generate(model, **kwargs, method=method, do_sample=False)
    identity.check(ours, plain)
    assert_looked_ahead()
    assert len(method.sizes) > 3


@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("name", SAMPLED)
def test_seeded_sampling(name: str, copies: int) -> None:
    family = BY_NAME[name]
    model, kwargs = tiny_model(family, family.attention[-1]), words(9) | SAMPLING | {"num_return_sequences": copies}
    torch.manual_seed(1)
    theirs = model.generate(**kwargs)
    torch.manual_seed(1)
    method = RandomTrees(theirs[:, -NEW_TOKENS:].tolist(), WORDS, seed=3)
    assert lade.generate(model, **kwargs, method=method).tolist() == theirs.tolist()
    assert_looked_ahead()
