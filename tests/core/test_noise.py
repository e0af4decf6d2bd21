"""Sampling's random numbers: the same draws as `torch.multinomial`, and the same generator behind them."""

import pytest
import torch
from torch import Tensor

from lade.core.noise import Noise, checked, choose, draw, draw_each

SHAPES = [(1, 1), (1, 5), (1, 512), (3, 16), (3, 33), (2, 50_257)]
STEPS = 7


def distributions(rows: int, vocabulary: int) -> list[Tensor]:
    """One [B, V] per emitted index, some words impossible, drawn away from the global generator."""
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(STEPS, rows, vocabulary, generator=generator) * 3
    logits[:, :, 1::3] = -torch.inf
    return list(logits.softmax(-1))


def plainly(probabilities: list[Tensor]) -> tuple[list[list[int]], Tensor]:
    torch.manual_seed(11)
    torch.rand(3)  # the generator may stand anywhere
    return [torch.multinomial(p, 1)[:, 0].tolist() for p in probabilities], torch.get_rng_state()


def start(rows: int) -> Noise:
    torch.manual_seed(11)
    torch.rand(3)
    return Noise(rows, torch.device("cpu"))


@pytest.mark.parametrize("ahead", [0, 1, 4])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_draws_are_multinomial_s(shape: tuple[int, int], ahead: int) -> None:
    """Whatever was drawn ahead for drafts that came to nothing, the draws are the same and the rest is given back."""
    probabilities = distributions(*shape)
    tokens, state = plainly(probabilities)
    noise, ours = start(shape[0]), []
    for index, p in enumerate(probabilities):
        noise.at(index + ahead, shape[1])
        ours.append(choose(p, noise.at(index, shape[1])))
        noise.forget(index)
    noise.rewind(STEPS)
    assert ours == tokens
    assert torch.equal(torch.get_rng_state(), state)


def test_rows_at_their_own_pace() -> None:
    """Rows ask for different indices in any order; each gets its row of that index's noise."""
    probabilities = distributions(3, 20)
    tokens, state = plainly(probabilities)
    noise, ours = start(3), {}
    for row, index in [(2, 0), (2, 1), (2, 2), (0, 0), (1, 0), (2, 3), (2, 4), (0, 1), (1, 1), (0, 2), (1, 2)]:
        ours[row, index] = choose(probabilities[index][row : row + 1], noise.at(index, 20)[row : row + 1])[0]
    assert ours == {(row, index): tokens[index][row] for row, index in ours}
    noise.rewind(5)
    torch.multinomial(probabilities[5], 1)
    torch.multinomial(probabilities[6], 1)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("used", range(STEPS + 1))
def test_rewind_to_any_length(used: int) -> None:
    probabilities = distributions(2, 9)
    _, state = plainly(probabilities[:used])
    noise = start(2)
    noise.at(STEPS - 1, 9)
    noise.rewind(used)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_call_that_drew_nothing_leaves_the_generator() -> None:
    state = torch.get_rng_state()
    Noise(3, torch.device("cpu")).rewind(0)
    assert torch.equal(torch.get_rng_state(), state)


def test_memory_is_bounded_by_the_slowest_row() -> None:
    noise = start(1)
    for index in range(500):
        noise.at(index + 3, 10)
        noise.forget(index)
    assert len(noise._drawn) <= 5
    assert len(noise._states) <= 6


def test_choices_of_several_rows_and_one_are_alike() -> None:
    p, noise = distributions(3, 40)[0], start(3).at(0, 40)
    assert choose(p, noise) == [choose(p[row : row + 1], noise[row : row + 1])[0] for row in range(3)]


@pytest.mark.parametrize("bad", [[float("nan"), 0.5, 0.5], [0.0, 0.0, 0.0], [float("nan")] * 3])
def test_no_distribution(bad: list[float]) -> None:
    """As plain decoding raises; a good row beside it does not help."""
    p = torch.tensor([[0.2, 0.3, 0.5], bad])
    with pytest.raises(RuntimeError):
        torch.multinomial(p, 1)
    with pytest.raises(RuntimeError, match="probability tensor"):
        choose(p, torch.ones(2, 3))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_draws_in_the_precision_of_the_probabilities(shape: tuple[int, int], dtype: torch.dtype) -> None:
    probabilities = [p.to(dtype) for p in distributions(*shape)]
    tokens, state = plainly(probabilities)
    noise = start(shape[0])
    ours = [choose(p, noise.at(index, shape[1], dtype)) for index, p in enumerate(probabilities)]
    assert ours == tokens
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(("p", "token"), [([0.25, 0.0, 0.75], 1), ([0.25, 0.75, 0.0], 2)])
def test_noise_of_zero(p: list[float], token: int) -> None:
    """Half precision rounds small noise to 0; 0 / 0 is what argmax takes, and plain decoding with it."""
    noise = torch.ones(1, 3)
    noise[0, token] = 0
    probabilities = torch.tensor([p])
    assert choose(probabilities, noise) == (probabilities / noise).argmax(-1).tolist() == [token]


def test_only_what_is_asked_for_must_be_a_distribution() -> None:
    """Nodes of a tree that the walk does not come to may say NaN."""
    p = torch.tensor([[0.2, 0.3, 0.5], [float("nan")] * 3, [0.0, 0.0, 1.0]])
    drawn = draw(p, torch.ones(3, 3)).tolist()
    assert drawn == [2, -1, 2]
    assert [checked(token) for token in drawn[::2]] == [2, 2]
    with pytest.raises(RuntimeError, match="probability tensor"):
        checked(drawn[1])


def test_rows_that_share_noise_draw_what_each_draws_alone() -> None:
    scores = torch.randn(5, 40, generator=torch.Generator().manual_seed(1))
    scores[:, ::3] = -torch.inf
    scores[1, 7], scores[2], scores[3, 39] = torch.nan, -torch.inf, torch.inf
    noise = start(2).at(0, 40)
    mine = [noise[row] for row in (0, 0, 1, 1, 1)]
    kept = noise.clone()
    expected = draw(scores.softmax(-1), torch.stack(mine))
    assert draw_each(scores.softmax(-1), mine).tolist() == expected.tolist()
    assert (expected < 0).tolist() == [False, True, True, True, False]
    assert torch.equal(noise, kept)
