"""The k likeliest logits against sorting all of them, with and without logits behind the groups of the search."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lade.core.topk import EXACT, depth_of_groups, likeliest

SIZES = st.integers(1, EXACT) | st.integers(EXACT, 2600) | st.integers(-1, 3).map(lambda extra: 2048 + extra)
LONG = 2565
SEEDS = st.integers(0, 10_000)


def noise(rows: int, size: int, seed: int, spread: float = 3.0) -> Tensor:
    """Distinct logits within a row."""
    generator = torch.Generator().manual_seed(seed)
    ranks = torch.stack([torch.randperm(size, generator=generator) for _ in range(rows)])
    return spread * torch.special.ndtri((ranks + 0.5) / size).float()


def softmax(logits: Tensor, tokens: Tensor, inverse_temperature: float = 1.0) -> Tensor:
    return (inverse_temperature * logits.double()).softmax(-1).gather(1, tokens)


@given(SIZES, st.integers(1, 9), st.integers(1, 4), SEEDS)
def test_the_tokens_are_those_of_a_full_sort(size: int, k: int, rows: int, seed: int) -> None:
    logits, k = noise(rows, size, seed), min(k, size)
    tokens, probabilities = likeliest(logits, k)
    assert torch.equal(tokens, logits.topk(k).indices)
    assert tokens.shape == probabilities.shape == (rows, k)


@pytest.mark.parametrize("size", [EXACT - 1, EXACT, EXACT + 1, EXACT + 15, 1536, 2049])
def test_every_place_is_found(size: int) -> None:
    """The largest of all stands at each index once, and the k largest together, among them at both ends."""
    k = 8
    tokens, _ = likeliest(noise(1, size, 0).expand(size, size) + 99 * torch.eye(size), k)
    assert tokens[:, 0].tolist() == list(range(size))
    for first in (0, 60, size - 68, size - k):
        logits = torch.zeros(1, size)
        logits[0, first : first + k] = torch.arange(k, 0, -1.0)
        assert likeliest(logits, k)[0].tolist() == [list(range(first, first + k))]


@given(SIZES, SEEDS, st.sampled_from([0.5, 1.0, 2.5]))
def test_probabilities_are_bounded(size: int, seed: int, inverse_temperature: float) -> None:
    """Never too small; too large by at most what the groups without a chosen token hold below their largest logits."""
    logits, k = noise(2, size, seed), min(8, size)
    tokens, probabilities = likeliest(logits, k, inverse_temperature)
    exact = softmax(logits, tokens, inverse_temperature)
    assert (probabilities >= exact * (1 - 1e-5)).all()
    assert (probabilities.sum(-1) <= 1 + 1e-5).all()
    assert (probabilities.diff(dim=-1) <= 0).all()
    powers = (inverse_temperature * logits.double()).exp()
    depth = depth_of_groups(size, k)
    groups = powers[:, : size // depth * depth].view(2, depth, -1)
    held = torch.zeros(2, size).scatter_(1, tokens, 1.0)[:, : size // depth * depth].view(2, depth, -1).amax(1)
    uncounted = ((groups.sum(1) - groups.amax(1)) * (1 - held)).sum(1) if size // depth else torch.zeros(2)
    counted = powers.sum(-1) - uncounted
    assert (probabilities <= exact * (powers.sum(-1) / counted)[:, None] * (1 + 1e-5)).all()


@given(st.integers(1, EXACT - 1), SEEDS, st.sampled_from([0.5, 1.0, 2.5]))
def test_short_rows_have_exact_probabilities(size: int, seed: int, inverse_temperature: float) -> None:
    logits = noise(3, size, seed)
    tokens, probabilities = likeliest(logits, min(8, size), inverse_temperature)
    assert probabilities.double().numpy() == pytest.approx(
        softmax(logits, tokens, inverse_temperature).numpy(), rel=1e-5
    )


@pytest.mark.parametrize("size", [320, LONG])
def test_a_sure_model_has_exact_probabilities(size: int) -> None:
    """Where few tokens share the mass."""
    logits = noise(3, size, 7)
    logits[:, ::97] += 15
    tokens, probabilities = likeliest(logits, 8)
    assert probabilities.double().numpy() == pytest.approx(softmax(logits, tokens).numpy(), rel=1e-3)


@pytest.mark.parametrize("size", [10, 320, LONG])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_precisions_are_read_as_they_are(size: int, dtype: torch.dtype) -> None:
    """Ties, of which bfloat16 makes many, may come in any order: their logits are the same."""
    logits = noise(3, size, 3).to(dtype)
    tokens, probabilities = likeliest(logits, 8)
    assert probabilities.dtype == torch.float32
    assert torch.equal(logits.gather(1, tokens), logits.topk(8).values)
    assert all(len(set(row)) == 8 for row in tokens.tolist())
    same = likeliest(logits.float(), 8)
    assert torch.equal(tokens, same[0])
    assert torch.equal(probabilities, same[1])


@pytest.mark.parametrize("size", [10, 320, EXACT, LONG])
@pytest.mark.parametrize("allowed", [1, 3, 8])
def test_tokens_that_are_ruled_out_have_no_probability(size: int, allowed: int) -> None:
    logits = torch.full((2, size), -torch.inf)
    spots = torch.linspace(0, size - 1, allowed).long()
    logits[:, spots] = torch.arange(allowed, 0, -1.0)
    tokens, probabilities = likeliest(logits, 8)
    assert tokens[:, :allowed].tolist() == [spots.tolist()] * 2
    assert probabilities[:, :allowed].double().numpy() == pytest.approx(softmax(logits, tokens)[:, :allowed].numpy())
    assert (probabilities[:, allowed:] == 0).all()


@pytest.mark.parametrize("size", [10, LONG])
def test_the_logits_stay_as_they_are(size: int) -> None:
    logits = noise(2, size, 1)
    before = logits.clone()
    likeliest(logits, 8, 2.0)
    assert torch.equal(logits, before)


def test_more_tokens_than_groups() -> None:
    logits = noise(2, 2000, 5)
    assert torch.equal(likeliest(logits, 1500)[0], logits.topk(1500).indices)


def test_probabilities_do_not_depend_on_other_rows() -> None:
    logits = noise(5, LONG, 2)
    assert torch.equal(likeliest(logits, 8)[1][:1], likeliest(logits[:1], 8)[1])
