"""`lade.Engine` where the device drafts: texts of plain decoding, whoever joins, leaves, or cannot be drafted for."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from enginetexts import greedy, model_of, plain, words
from families import BY_NAME
from tiny import own_llama, tiny_model
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedModel

import lade
from lade.core.request import Request
from lade.static import shelf
from lade.static.rounds import drafts
from lade.static.rounds.step import TREE
from lade.static.step import NOT_A_NUMBER

CONFIG = lade.LookaheadConfig(static=True, device_drafts=True, adapt=False, budget=12)
Asked = tuple[list[int], int, int, dict[str, Any]]  # a prompt, new tokens, a seed, other arguments


def submitted(engine: lade.Engine, asked: Asked, **own: Any) -> Request:
    prompt, new, seed, kwargs = asked
    return engine.submit(**greedy(prompt, new, **kwargs), seed=seed, **own)


def expected(model: PreTrainedModel, asked: Asked) -> list[int]:
    prompt, new, seed, kwargs = asked
    return plain(model, prompt, new, seed, **kwargs)


def decoded(engine: lade.Engine, texts: Sequence[Asked], steps: int) -> list[Request]:
    """Requests that arrive so many steps after each other, and take the slots of those that have left."""
    requests = list[Request]()
    for asked in texts:
        requests.append(submitted(engine, asked))
        for _ in range(steps):
            engine.step()
    engine.run()
    return requests


def sources(requests: Sequence[Request]) -> set[str]:
    return {source for request in requests for source in request.tally.proposed}


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[list[Request]]:
    """The requests of each step that the device has drafted."""
    steps, following = list[list[Request]](), drafts.DeviceDrafts.next

    def noting(device: Any, requests: Sequence[Request]) -> Any:
        made = following(device, requests)
        if made is not None:
            steps.append([*requests])
        return made

    monkeypatch.setattr(drafts.DeviceDrafts, "next", noting)
    return steps


GREEDY: dict[str, Any] = {}
SAMPLED: list[dict[str, Any]] = [
    {"do_sample": True, "temperature": 0.3},
    {"do_sample": True, "temperature": 0.5, "top_k": 20},
    {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 0},
    {},
    {"do_sample": True, "temperature": 1.0, "top_k": 3},
    {"do_sample": True, "temperature": 0.4, "top_k": 9, "top_p": 0.9},
]


@pytest.mark.parametrize(
    ("name", "steps"), [("llama", 0), ("llama", 3), ("gemma3", 3), ("gpt2", 7), ("mistral-sliding", 7)]
)
def test_texts_of_plain_decoding(name: str, steps: int, found: list[list[Request]]) -> None:
    """Six requests in four slots."""
    model = model_of(name)
    texts: list[Asked] = [(words(size, size), 12 + size % 8, 3, GREEDY) for size in (9, 40, 4, 25, 61, 13)]
    with lade.Engine(model, CONFIG, slots=4) as engine:
        requests = decoded(engine, texts, steps)
        assert engine.not_static is None
    assert [each.tokens for each in requests] == [expected(model, asked) for asked in texts]
    assert all(any(each in step for step in found) for each in requests)
    assert max(map(len, found)) >= 2
    assert sum(each.tally.accepted["device"] for each in requests) > 3 * len(requests)


@pytest.mark.parametrize(("name", "adapt"), [("llama", False), ("llama", True), ("gemma3", False)])
def test_samples_of_plain_decoding(name: str, adapt: bool, found: list[list[Request]]) -> None:
    """Each request with its own seed, temperature, top-k and top-p, one of them greedy; all in the same steps."""
    model = model_of(name)
    asked = [*SAMPLED, *SAMPLED[:3]]
    texts: list[Asked] = [(words(5 + row, row), 30 - 2 * row, row, kwargs) for row, kwargs in enumerate(asked)]
    config = lade.LookaheadConfig(static=True, device_drafts=True, adapt=adapt, budget=12)
    with lade.Engine(model, config, slots=5) as engine:
        requests = decoded(engine, texts, 2)
    assert [each.tokens for each in requests] == [expected(model, asked) for asked in texts]
    assert max(map(len, found)) == 5
    assert adapt or all(any(each in step for step in found) for each in requests)


def test_where_nobody_joins_the_device_makes_all_drafts(found: list[list[Request]]) -> None:
    """Of requests that arrive together, until the last one has left."""
    model = model_of("llama")
    texts: list[Asked] = [(words(9, row), 14 + 6 * row, row, kwargs) for row, kwargs in enumerate(SAMPLED)]
    with lade.Engine(model, CONFIG, slots=6) as engine:
        requests = decoded(engine, texts, 0)
        acceptance = [each.tally.acceptance() for each in requests]
    assert [each.tokens for each in requests] == [expected(model, asked) for asked in texts]
    assert sources(requests) == {"device"}
    assert [sum(each in step for step in found) for each in requests] == [each.steps for each in acceptance]


def test_each_text_ends_at_its_own_tokens(found: list[list[Request]]) -> None:
    model = model_of("llama")
    texts = list[Asked]()
    for row, kwargs in enumerate([GREEDY, *SAMPLED[:3]]):
        whole = plain(model, words(9, row), 40, row, **kwargs)[9:]
        late = max(whole[:-8], key=whole.index)  # the last one to come up
        texts.append((words(9, row), 40, row, kwargs | {"eos_token_id": [late, 3], "pad_token_id": 0}))
    with lade.Engine(model, CONFIG, slots=4) as engine:
        requests = [submitted(engine, asked) for asked in texts]
        while not found:
            engine.step()
        known = engine._steps.graphs.tables.ends  # type: ignore[union-attr]
        for request, asked in zip(requests, texts, strict=True):
            last = torch.tensor([asked[3]["eos_token_id"][0]])
            assert known(torch.tensor([request.slot]), last) == torch.tensor([True])
        engine.run()
    assert [each.tokens for each in requests] == [expected(model, asked) for asked in texts]
    assert all(each.tokens[-1] == asked[3]["eos_token_id"][0] for each, asked in zip(requests, texts, strict=True))
    assert sources(requests) == {"device"}
    assert len({len(each.tokens) for each in requests}) > 1


def test_cancelled_requests_and_those_that_take_their_slots(found: list[list[Request]]) -> None:
    model = model_of("llama")
    with lade.Engine(model, CONFIG, slots=2) as engine:
        kept = submitted(engine, (words(9), 60, 3, GREEDY))
        for row in range(4):
            cut = submitted(engine, (words(12, row), 60, row, SAMPLED[row]))
            for _ in range(3 + row):
                engine.step()
            assert any(cut in step for step in found)
            engine.cancel(cut)
            whole = plain(model, words(12, row), 60, row, **SAMPLED[row])
            assert cut.tokens == whole[: len(cut.tokens)]
        engine.run()
    assert kept.tokens == plain(model, words(9), 60)


def test_a_cancelled_request_leaves_the_steps_that_are_made_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    visits, run = list[tuple[int, int]](), drafts.DeviceLoop.run

    def noting(loop: Any, places: Any, rounds: int) -> Any:
        visits.append((len(places), loop.step.rows))
        return run(loop, places, rounds)

    monkeypatch.setattr(drafts.DeviceLoop, "run", noting)
    model = model_of("llama")
    with lade.Engine(model, CONFIG, slots=2) as engine:
        requests = [submitted(engine, (words(9, row), 60, row, GREEDY)) for row in range(2)]
        while not visits:
            engine.step()
        engine.cancel(requests[0])
        for _ in range(drafts.ROUNDS - 1):
            engine.step()
        assert visits == [(2, 2)]
        engine.run()
    assert requests[1].tokens == plain(model, words(9, 1), 60)
    assert set(visits[1:]) == {(1, 1)}


class Favourite(LogitsProcessor):
    """A processor that lade does not know."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores[:, 7] += 1
        return scores


CANNOT: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a processor that reads the text": ({"repetition_penalty": 1.3}, {}),
    "a processor that checks scores": ({"do_sample": True, "eta_cutoff": 0.01}, {}),
    "an unknown processor": ({"logits_processor": LogitsProcessorList([Favourite()])}, {}),
    "another processor than its neighbour's": ({"suppress_tokens": [7, 9]}, {}),
    "a stopping criterion": ({"max_time": 1000.0}, {}),
    "no drafts": ({}, {"drafts": False}),
    "log probabilities": ({}, {"logprobs": 2}),
    "forced tokens": ({}, {"forced": lambda text: [7]}),
}


@pytest.mark.parametrize("name", CANNOT)
def test_requests_that_the_device_cannot_draft_for(name: str, found: list[list[Request]]) -> None:
    """Nor can it for others in the same steps; it does before and behind."""
    kwargs, own = CANNOT[name]
    model, long, short = model_of("llama"), (words(9), 64, 3, SAMPLED[1]), (words(14, 1), 8, 5, kwargs)
    with lade.Engine(model, CONFIG, slots=2) as engine:
        neighbour = submitted(engine, long)
        for _ in range(4):
            engine.step()
        before = len(found)
        request = submitted(engine, short, **own)
        while not request.finished:
            engine.step()
        assert len(found) == before > 0
        engine.run()
        assert len(found) > before
    assert (neighbour.tokens, request.tokens) == (expected(model, long), expected(model, short))
    assert not any(request in step for step in found)


def test_no_step_is_made_by_the_device_while_a_prompt_is_read(found: list[list[Request]]) -> None:
    model, long = model_of("llama"), words(230)
    with lade.Engine(model, CONFIG, slots=2) as engine:
        first = submitted(engine, (words(9), 90, 3, GREEDY))
        for _ in range(4):
            engine.step()
        second = submitted(engine, (long, 20, 3, GREEDY))
        while second.prefilled < len(long):
            before, emitted = len(found), first.emitted
            engine.step()
            assert len(found) == before
            assert first.emitted > emitted
        engine.run()
    assert [first.tokens, second.tokens] == [plain(model, words(9), 90), plain(model, long, 20)]
    assert any(len(step) == 2 for step in found)


def test_calls_between_an_engine_s_requests_share_its_graphs() -> None:
    """Whose tables then know another text in each slot."""
    model, asked = own_llama().double(), (words(9), 30, 5, SAMPLED[1])
    with lade.Engine(model, CONFIG, slots=1) as engine:
        for seed in range(2):
            (request,) = decoded(engine, [asked], 0)
            assert request.tokens == expected(model, asked)
            text = plain(model, words(9, seed), 30, seed, **SAMPLED[4])
            torch.manual_seed(seed)
            mine = lade.generate(model, **greedy(words(9, seed), 30, **SAMPLED[4]), config=CONFIG)
            assert mine[0].tolist() == text
            assert "device" in lade.last_stats().proposed


def test_nothing_of_the_request_before_in_a_slot_is_known() -> None:
    """Neither its text nor its noise."""
    model, asked = own_llama().double(), (words(9), 40, 3, GREEDY)
    with lade.Engine(model, CONFIG, slots=1) as engine:
        (alone,) = decoded(engine, [asked], 0)
        for kwargs in SAMPLED[:3]:
            decoded(engine, [(words(9), 40, 4, kwargs)], 0)
        (behind,) = decoded(engine, [asked], 0)
    assert behind.tally.acceptance() == alone.tally.acceptance()


def test_slots_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The larger ones have tables of their own, which know each request again."""
    monkeypatch.setattr(shelf, "NODES", (16,))
    monkeypatch.setattr(shelf, "SPARE", 1)
    monkeypatch.setattr("lade.static.buckets.SMALLEST_CAPACITY", 16)
    model = own_llama().double()
    texts: list[Asked] = [(words(9, row), 90 - 20 * row, row, kwargs) for row, kwargs in enumerate(SAMPLED[1:4])]
    with lade.Engine(model, CONFIG, slots=4) as engine:
        requests = decoded(engine, texts, 0)
    assert [each.tokens for each in requests] == [expected(model, asked) for asked in texts]
    assert sources(requests) == {"device"}


def test_nan_of_one_request_is_its_own(monkeypatch: pytest.MonkeyPatch, found: list[list[Request]]) -> None:
    """The host drafts as long as it is there."""
    run = drafts.DeviceLoop.run

    def with_nan(loop: Any, places: Any, rounds: int) -> Any:
        steps = run(loop, places, rounds).copy()
        for row, place in enumerate(places):
            if place.slot == 1:
                steps[1:, row, :, TREE + 1] = NOT_A_NUMBER
        return steps

    monkeypatch.setattr(drafts.DeviceLoop, "run", with_nan)
    model = model_of("llama")
    with lade.Engine(model, CONFIG, slots=2) as engine:
        first, second = (submitted(engine, (words(9, row), 90 - 60 * row, 3, GREEDY)) for row in range(2))
        engine.run()
    assert [first.tokens, second.tokens] == [plain(model, words(9), 90), plain(model, words(9, 1), 30)]
    assert sum(second in step for step in found) == 1
    assert found[-1] == [first]


def test_time_of_captures_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = list[tuple[bool, float]]()

    class Device(drafts.Turns):
        def next(self) -> bool:
            super().next()
            return True

        def end(self, tokens: float, counts: bool = True) -> None:
            noted.append((counts, tokens))

    monkeypatch.setattr("lade.engine.rounds.Turns", Device)
    model = own_llama().double()
    config = lade.LookaheadConfig(static=True, device_drafts=True, budget=12)
    with lade.Engine(model, config, slots=2) as engine:
        for counts in (False, True):
            noted.clear()
            requests = decoded(engine, [(words(9, row), 40, 3, GREEDY) for row in range(2)], 0)
            assert [each[0] for each in noted] == [counts] + [True] * (len(noted) - 1)
            assert 2 * sum(each[1] for each in noted) == sum(each.emitted for each in requests) - 2


def test_the_last_positions_of_a_model() -> None:
    """gpt2 has a learned embedding for each; one text ends at the last one, another goes on before."""
    settings = BY_NAME["gpt2"].config | {"n_positions": 40}
    model = tiny_model(dataclasses.replace(BY_NAME["gpt2"], config=settings), "sdpa", torch.float64)
    texts: list[Asked] = [(words(16), 24, 3, GREEDY), (words(5), 30, 4, SAMPLED[1])]
    with lade.Engine(model, CONFIG, slots=2) as engine:
        requests = decoded(engine, texts, 0)
    assert [each.tokens for each in requests] == [expected(model, asked) for asked in texts]
    assert sources(requests) == {"device"}
