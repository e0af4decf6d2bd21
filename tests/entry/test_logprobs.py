"""Log probabilities of a request's tokens, and requests without drafts: neither changes a text."""

from typing import Any

import pytest
import torch
from families import BY_NAME
from tiny import FIRST_WORD, tiny_model
from transformers import PreTrainedModel

import lade
from lade.core.request import Request

CONFIG = lade.LookaheadConfig(mode="auto", budget=16, adapt=False)
IDS = torch.tensor([[*range(FIRST_WORD, FIRST_WORD + 9), *range(FIRST_WORD, FIRST_WORD + 9)]])
NEW = 24


def expected(model: PreTrainedModel, tokens: list[int]) -> list[float]:
    """Of all tokens but the first, by one forward of the whole text."""
    with torch.no_grad():
        logprobs = model(torch.tensor([tokens])).logits[0].log_softmax(-1)
    return [logprobs[place, token].item() for place, token in enumerate(tokens[1:])]


def decoded(model: PreTrainedModel, count: int = 2, chunk: int = 256, **kwargs: Any) -> list[Request]:
    """Requests of the same prompt, of which the second one arrives later."""
    with lade.Engine(model, CONFIG) as engine:
        engine._loop.step_tokens = chunk
        requests = []
        for _ in range(count):
            requests.append(engine.submit(IDS, **{"max_new_tokens": NEW, "do_sample": False} | kwargs))
            for _ in range(3):
                engine.step()
        engine.run()
    return requests


@pytest.mark.parametrize("chunk", [7, 256])
@pytest.mark.parametrize("drafts", [True, False])
@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral-sliding"])
def test_of_prompt_and_answer(name: str, drafts: bool, chunk: int) -> None:
    model = tiny_model(BY_NAME[name], BY_NAME[name].attention[-1])
    plain = model.generate(IDS, max_new_tokens=NEW, do_sample=False)[0].tolist()
    for request in decoded(model, chunk=chunk, logprobs=3, prompt_logprobs=True, drafts=drafts):
        assert request.tokens == plain
        noted = request.logprobs
        assert noted is not None
        places = [*noted.of_prompt, *noted.emitted]
        assert [place.token for place in places] == plain[1:]
        torch.testing.assert_close([place.logprob for place in places], expected(model, plain), atol=1e-4, rtol=1e-4)
        assert all(place.top[0][0] == place.token for place in noted.emitted)
        assert {len(place.top) for place in places} == {3}
        assert bool(request.tally.accepted) == drafts


def test_they_are_those_before_processors_and_temperature() -> None:
    model = tiny_model(BY_NAME["llama"], "sdpa")
    settings = {"do_sample": True, "temperature": 0.6, "top_k": 5, "repetition_penalty": 1.4}
    torch.manual_seed(4)
    plain = model.generate(IDS, max_new_tokens=NEW, **settings)[0].tolist()
    (request,) = decoded(model, 1, seed=4, logprobs=0, **settings)
    assert request.tokens == plain
    assert request.logprobs is not None
    assert request.logprobs.of_prompt == []
    found = [place.logprob for place in request.logprobs.emitted]
    torch.testing.assert_close(found, expected(model, plain)[-NEW:], atol=1e-4, rtol=1e-4)


def test_a_scored_prompt_is_not_taken_from_the_prefixes() -> None:
    model = tiny_model(BY_NAME["llama"], "sdpa")
    ids = torch.tensor([[FIRST_WORD + place % 7 for place in range(150)]])
    with lade.Engine(model, CONFIG) as engine:
        found = []
        for scored in (False, True, False):
            asked: dict[str, Any] = {"logprobs": 0, "prompt_logprobs": True} if scored else {}
            request = engine.submit(ids, max_new_tokens=4, do_sample=False, tenant="one", **asked)
            engine.run()
            found.append((request.cached, len(request.logprobs.of_prompt) if request.logprobs else 0))
    assert found == [(0, 0), (0, 149), (128, 0)]


def test_a_request_without_drafts_beside_one_with_drafts() -> None:
    model = tiny_model(BY_NAME["llama"], "sdpa")
    plain = model.generate(IDS, max_new_tokens=NEW, do_sample=False)[0].tolist()
    with lade.Engine(model, CONFIG) as engine:
        requests = [engine.submit(IDS, max_new_tokens=NEW, do_sample=False, drafts=drafts) for drafts in (True, False)]
        engine.run()
    assert [request.tokens for request in requests] == [plain, plain]
    drafted, alone = (request.tally for request in requests)
    assert drafted.accepted.total() > 0
    assert not alone.proposed
    assert alone.lengths == {1: NEW - 1}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"drafts": 2}, "drafts must be True, False, 1 or 0, got 2"),
        ({"logprobs": -1}, "logprobs must be None or an integer of at least 0, got -1"),
        ({"logprobs": True}, "logprobs must be None or an integer of at least 0, got True"),
        ({"prompt_logprobs": 3, "logprobs": 1}, "prompt_logprobs must be True, False, 1 or 0, got 3"),
        (
            {"prompt_logprobs": True},
            "logprobs must be an integer of at least 0 where prompt_logprobs is given, got None",
        ),
    ],
)
def test_wrong_arguments(wrong: dict[str, Any], message: str) -> None:
    with lade.Engine(tiny_model(BY_NAME["llama"], "sdpa"), CONFIG) as engine:
        with pytest.raises(ValueError, match=message):
            engine.submit(IDS, max_new_tokens=5, **wrong)
        assert not engine.step()
