"""Predictions after a prefix and one token: those of the whole text, and the largest logits of every row."""

import pytest
import torch
from families import BY_NAME, VOCAB
from hypothesis import given
from hypothesis import strategies as st
from tiny import tiny_model

from lade.core.topk import exactly_likeliest
from lade.memory.warm import predictions
from lade.memory.warm.predictions import GROUP, AfterPrefix, likeliest_by_block


@given(st.integers(0, 10_000), st.integers(1, 9), st.integers(1, 40 * GROUP), st.integers(1, 16))
def test_the_largest_logits_of_every_row(seed: int, rows: int, size: int, top: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = 5 * torch.randn(rows, size, generator=generator)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(predictions, "BLOCK", 2 * size)
        tokens, probabilities = likeliest_by_block(logits, min(top, size))
    expected = exactly_likeliest(logits, min(top, size))
    assert torch.equal(tokens, expected[0])
    torch.testing.assert_close(probabilities, expected[1])


@pytest.mark.parametrize("prefix", [(), (3,), (3, 5, 8)])
@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral", "gemma2", "qwen2"])
@torch.no_grad()
def test_one_prefix_serves_all_batches(name: str, prefix: tuple[int, ...]) -> None:
    model = tiny_model(BY_NAME[name])
    after = AfterPrefix(model, prefix, 24)
    found = torch.cat([after.logits(part) for part in torch.split(torch.arange(VOCAB), 24)])
    whole = [[*prefix, token] for token in range(VOCAB)]
    torch.testing.assert_close(found, model(input_ids=torch.tensor(whole)).logits[:, -1])


@torch.no_grad()
def test_the_prefix_is_read_once() -> None:
    model, seen = tiny_model(BY_NAME["llama"]), []
    hook = model.register_forward_pre_hook(lambda *args: seen.append(args[2]["input_ids"].shape), with_kwargs=True)
    after = AfterPrefix(model, (3, 5, 8), 24)
    after.logits(torch.arange(24))
    after.logits(torch.arange(8))
    hook.remove()
    assert seen == [(1, 3), (24, 1), (8, 1)]
