"""Log probabilities of tokens, against the softmax written out."""

import math

import torch

from lade.core.logprobs import Logprobs, logprobs_of

LOGITS = torch.tensor([[0.0, math.log(2), math.log(5)], [math.log(6), 0.0, 0.0]])  # /8 each


def test_tokens_and_the_most_likely_ones() -> None:
    first, second = logprobs_of(LOGITS, [1, 0], 2)
    assert math.isclose(first.logprob, math.log(2 / 8), abs_tol=1e-6)
    assert [token for token, _ in first.top] == [2, 1]
    assert math.isclose(first.top[0][1], math.log(5 / 8), abs_tol=1e-6)
    assert (second.token, second.top[0][0]) == (0, 0)


def test_none_or_all_of_the_vocabulary() -> None:
    assert [place.top for place in logprobs_of(LOGITS, [0, 0], 0)] == [[], []]
    assert [len(place.top) for place in logprobs_of(LOGITS, [0, 0], 99)] == [3, 3]


def test_half_precision_is_computed_in_float32() -> None:
    exact = logprobs_of(LOGITS.bfloat16().float(), [1, 0], 3)
    assert logprobs_of(LOGITS.bfloat16(), [1, 0], 3) == exact


def test_prompt_and_emitted_tokens_are_apart() -> None:
    noted = Logprobs(1)
    noted.read(LOGITS, [2, 1])
    noted.emit(LOGITS[:1], 0)
    assert [place.token for place in noted.of_prompt] == [2, 1]
    assert [place.token for place in noted.emitted] == [0]
