"""Mean log-likelihood: against token-by-token forwards, and its refusals."""

import copy
import math

import pytest
import torch
from families import BY_NAME, VOCAB
from tiny import tiny_model, words
from transformers import PreTrainedModel

from lade.measure.likelihood import mean_log_likelihood


def tiny(name: str = "llama", dtype: torch.dtype = torch.float64) -> PreTrainedModel:
    return tiny_model(BY_NAME[name], "sdpa", dtype)


@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral-sliding"])
@pytest.mark.parametrize("length", [1, 7])
def test_token_by_token(name: str, length: int) -> None:
    model, text = tiny(name), words(9 + length)["input_ids"][0]
    logs = []
    with torch.no_grad():
        for end in range(9, 9 + length):
            logits = model(input_ids=text[None, :end]).logits[0, -1]
            logs.append(logits.log_softmax(-1)[text[end]].item())
    assert mean_log_likelihood(model, text[:9], text[9:]) == pytest.approx(sum(logs) / length, abs=1e-9)


def test_of_a_model_that_knows_nothing() -> None:
    model = copy.deepcopy(tiny())
    with torch.no_grad():
        model.get_output_embeddings().weight.zero_()
    text = words(9)["input_ids"][0]
    assert mean_log_likelihood(model, text[:4], text[4:]) == pytest.approx(-math.log(VOCAB))


def test_half_precision_is_summed_in_float32() -> None:
    text = words(9)["input_ids"][0]
    exact, half = (
        mean_log_likelihood(tiny(dtype=dtype), text[:4], text[4:]) for dtype in (torch.float64, torch.bfloat16)
    )
    assert half == pytest.approx(exact, abs=0.1)


@pytest.mark.parametrize("name", ["prompt", "continuation"])
@pytest.mark.parametrize("wrong", [torch.tensor([[1]]), torch.tensor([], dtype=torch.long), torch.tensor([1.0])])
def test_what_is_no_list_of_ids(name: str, wrong: torch.Tensor) -> None:
    right = torch.tensor([3, 4])
    given = {"prompt": right, "continuation": right} | {name: wrong}
    with pytest.raises(ValueError, match=f"^{name} must be a 1-D tensor of at least one token id, got "):
        mean_log_likelihood(tiny(), **given)


def test_ids_of_the_vocabulary() -> None:
    right = torch.tensor([3, 4])
    with pytest.raises(ValueError, match=f"continuation must hold token ids from 0 to {VOCAB - 1}, got 3 to {VOCAB}"):
        mean_log_likelihood(tiny(), right, torch.tensor([3, VOCAB]))


def test_training_mode() -> None:
    model = copy.deepcopy(tiny()).train()
    with pytest.raises(ValueError, match="training mode"):
        mean_log_likelihood(model, torch.tensor([3]), torch.tensor([4]))
