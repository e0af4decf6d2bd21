"""Choosing for several rows together: the tokens of each row alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
)

import lade
from lade.core.noise import Noise
from lade.core.request import Request
from lade.core.tree import Draft
from lade.engine import verification
from lade.engine.levels import LevelByLevel, Reached, choose_together
from lade.engine.stopping import HostRule
from lade.engine.stream import Stream
from lade.engine.text import Text, UnreadText
from lade.target.outputs import Outputs

Story = tuple[PreTrainedModel, PreTrainedTokenizerBase]
PROMPTS = ("Once upon a time, there was a", "Tom had a dog", "One day, a bird saw a big")
NEW_TOKENS, VOCABULARY = 24, 8
CONFIG = lade.LookaheadConfig(adapt=False, budget=16)
WAYS: dict[str, dict[str, Any]] = {
    "warped": {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.9},
    "penalised": {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.9, "repetition_penalty": 1.3},
    "likeliest": {"do_sample": False, "repetition_penalty": 1.3, "min_new_tokens": 5},
    "cold": {"do_sample": True, "temperature": 0.3, "top_k": 0},
}


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each choice is for."""
    rows: list[int] = []

    def counted(reached: Sequence[Reached], scores: Sequence[torch.Tensor]) -> list[int]:
        rows.append(len(reached))
        return choose_together(reached, scores)

    monkeypatch.setattr(verification, "choose_together", counted)
    return rows


@pytest.fixture(scope="module")
def alone(shipped: Story) -> Callable[[int, str], list[int]]:
    """The text of plain decoding."""

    @cache
    def text(prompt: int, way: str) -> list[int]:
        ids = shipped[1](PROMPTS[prompt], return_tensors="pt")
        torch.manual_seed(prompt)
        found: list[int] = shipped[0].generate(**ids, max_new_tokens=NEW_TOKENS, **WAYS[way])[0].tolist()
        return found

    return text


@pytest.mark.parametrize("way", WAYS)
def test_rows_of_a_batch(way: str, shipped: Story, together: list[int]) -> None:
    model, tokenizer = shipped
    batch = tokenizer(list(PROMPTS), return_tensors="pt", padding=True)
    kwargs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]} | WAYS[way]
    texts = []
    for generate in (model.generate, lambda **kwargs: lade.generate(model, **kwargs, config=CONFIG)):
        torch.manual_seed(0)
        texts.append((generate(**kwargs, max_new_tokens=NEW_TOKENS).tolist(), torch.get_rng_state().tolist()))
    assert texts[0] == texts[1]
    assert lade.last_stats().accepted_tokens > 0
    assert together.count(3) > 3


def test_requests_of_an_engine(shipped: Story, together: list[int], alone: Callable[[int, str], list[int]]) -> None:
    """Those whose last processors are the same choose together, whatever is in front of these."""
    model, tokenizer = shipped
    asked = [(prompt, way) for way in WAYS for prompt in range(len(PROMPTS))]
    with lade.Engine(model, CONFIG, slots=len(asked)) as engine:
        requests = [
            engine.submit(
                **tokenizer(PROMPTS[prompt], return_tensors="pt"), max_new_tokens=NEW_TOKENS, seed=prompt, **WAYS[way]
            )
            for prompt, way in asked
        ]
        while engine.step():
            pass
    assert [request.tokens for request in requests] == [alone(*each) for each in asked]
    assert max(together) == 6
    assert 3 in together


# Parts


class Giving(HostRule):
    """Ends nothing; raises in one row."""

    def __init__(self, row: int = -1) -> None:
        super().__init__(frozenset())
        self.row = row

    def __call__(self, request: Request) -> bool:
        if request.row == self.row:
            raise ValueError(f"row {request.row}")
        return super().__call__(request)


def logits_for(*tokens: int) -> torch.Tensor:
    """[M, V] after which these tokens are the likeliest."""
    return 20 * torch.nn.functional.one_hot(torch.tensor(tokens), VOCABULARY).float()


def emission_of(requests: list[Request], ends: HostRule, *processors: Any, seed: int | None = None) -> LevelByLevel:
    noise = None if seed is None else Noise(len(requests), torch.device("cpu"), torch.Generator().manual_seed(seed))
    text: Text | UnreadText = UnreadText(torch.device("cpu"))
    if any(isinstance(each, RepetitionPenaltyLogitsProcessor) for each in processors):
        text = Text(torch.tensor([request.tokens for request in requests]))
    made = LevelByLevel(requests, Stream(None, requests, 0), LogitsProcessorList(processors), ends, text, noise)
    for request in requests:
        request.emission = made
    return made


CHAIN = Draft([1, 2, 3], [-1, 0, 1], [0, 1, 2], [0, 1, 2], ["root", "a", "a"])


def verified(requests: list[Request], logits: torch.Tensor) -> list[tuple[Sequence[int], list[int]]]:
    """Path and tokens of each row, whose draft is the chain."""
    lines = [{node: 3 * row + node for node in range(3)} for row in range(len(requests))]
    drafts = [CHAIN] * len(requests)
    verification.begin(requests, drafts, Outputs(logits, lines))
    return [tuple(verdict) for verdict in verification.verify(requests, drafts)]


def test_rows_walk_to_ends_of_their_own(together: list[int]) -> None:
    requests = [Request(row, [1], 1, 9) for row in range(3)]
    emission_of(requests, Giving(), TemperatureLogitsWarper(0.5))
    assert verified(requests, logits_for(2, 3, 4, 5, 3, 4, 2, 6, 4)) == [
        ([0, 1, 2], [2, 3, 4]),
        ([0], [5]),
        ([0, 1], [2, 6]),
    ]
    assert [request.tokens for request in requests] == [[1, 2, 3, 4], [1, 5], [1, 2, 6]]
    assert together == [3, 2, 1]


@pytest.mark.parametrize("seed", [None, 0])
def test_what_one_row_raises_ends_it_alone(seed: int | None, together: list[int]) -> None:
    requests = [Request(row, [1], 1, 9) for row in range(3)]
    emission_of(requests, Giving(1), TopKLogitsWarper(3), seed=seed)
    assert verified(requests, logits_for(*[2, 3, 4] * 3)) == [([0, 1, 2], [2, 3, 4]), ([0], []), ([0, 1, 2], [2, 3, 4])]
    assert [str(request.error) for request in requests] == ["None", "row 1", "None"]
    assert [request.finished for request in requests] == [False, True, False]
    assert together == [3, 2, 2]


def test_a_row_without_a_distribution() -> None:
    requests = [Request(row, [1], 1, 9) for row in range(2)]
    emission_of(requests, Giving(), TopKLogitsWarper(3), seed=0)
    logits = logits_for(*[2, 3, 4] * 2)
    logits[1] = torch.nan
    assert verified(requests, logits) == [([0], []), ([0, 1, 2], [2, 3, 4])]
    assert "probability tensor" in str(requests[0].error)
    assert requests[1].error is None


def test_what_the_shared_processors_raise_ends_all_that_share_them() -> None:
    class Broken(TopKLogitsWarper):
        def __call__(self, input_ids: Any, scores: Any) -> Any:
            raise RuntimeError("broken")

    others, requests = [Request(row, [1], 1, 9) for row in range(2)], [Request(row, [1], 1, 9) for row in range(2)]
    emission_of(others, Giving(), TopKLogitsWarper(3))
    emission = emission_of(requests, Giving(), TopKLogitsWarper(4))
    emission._shared = [Broken(4)]
    assert verified([*others, *requests], logits_for(*[2, 3, 4] * 4))[2:] == [([0], []), ([0], [])]
    assert [request.error is None for request in [*others, *requests]] == [True, True, False, False]


class Own(LogitsProcessor):
    """A user's: doubles the precision, or raises."""

    def __init__(self, raises: bool = False) -> None:
        self.raises = raises

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        if self.raises:
            raise ValueError("own")
        return scores.double()


def test_processors_of_users_run_for_their_request_alone(together: list[int]) -> None:
    """What one raises ends its request, and scores of another precision are drawn from apart."""
    processors = [(), (Own(raises=True),), (Own(),), ()]
    requests = [Request(0, [1], 1, 9) for _ in processors]
    for request, own in zip(requests, processors, strict=True):
        emission_of([request], Giving(), *own, TopKLogitsWarper(3), seed=0)
    found = [([0, 1, 2], [2, 3, 4]), ([0], []), ([0, 1, 2], [2, 3, 4]), ([0, 1, 2], [2, 3, 4])]
    assert verified(requests, logits_for(*[2, 3, 4] * 4)) == found
    assert [str(request.error) for request in requests] == ["None", "own", "None", "None"]
    assert together == [2, 1] * 3


class InPlace(LogitsProcessor):
    """A user's: writes over the scores."""

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        return scores.zero_()


def test_the_logits_stay_as_they_are_for_what_is_learned_from_them(together: list[int]) -> None:
    requests = [Request(0, [1], 1, 9) for _ in range(2)]
    for request in requests:
        emission_of([request], Giving(), InPlace(), TopKLogitsWarper(3))
    logits = logits_for(*[2, 3, 4] * 2)
    verified(requests, logits)
    assert together == [2]
    assert torch.equal(logits, logits_for(*[2, 3, 4] * 2))


def test_which_emissions_choose_together() -> None:
    cold, warm, warmer = (TemperatureLogitsWarper(heat) for heat in (0.5, 0.7, 0.9))
    penalty = RepetitionPenaltyLogitsProcessor(1.5)

    def key(*processors: Any, seed: int | None = 0) -> Any:
        return emission_of([Request(0, [1], 1, 9)], Giving(), *processors, seed=seed).key

    assert key(warm) == key(TemperatureLogitsWarper(0.7)) == key(penalty, warm) == key(warmer, penalty, warm)
    assert len({key(warm), key(cold), key(warm, TopKLogitsWarper(3)), key(warm, seed=None), key()}) == 5


def test_processors_in_front_of_one_that_reads_the_text_run_for_each_row_alone(together: list[int]) -> None:
    """A token that a row's text has is ruled out there alone."""
    requests = [Request(row, [token], 1, 9) for row, token in enumerate((2, 5))]
    penalty, cold = RepetitionPenaltyLogitsProcessor(1000.0), TemperatureLogitsWarper(0.5)
    emission_of(requests, Giving(), cold, penalty, TopKLogitsWarper(3))
    logits = logits_for(*[2, 3, 4] * 2) + logits_for(*[6] * 6) / 2
    assert [tokens for _, tokens in verified(requests, logits)] == [[6], [2, 3, 4]]
    assert together == [2, 1, 1]
