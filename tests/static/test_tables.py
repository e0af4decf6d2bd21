"""What the device knows of the request in each slot: how its tokens are chosen, and where its text ends."""

from types import SimpleNamespace
from typing import Any

import torch
from enginetexts import model_of
from tiny import own_llama
from transformers import LogitsProcessorList, TopKLogitsWarper

from lade.core.noise import Noise
from lade.core.request import Choosing, Request
from lade.static import shelf
from lade.static.rounds.choosing import Way, shared
from lade.static.rounds.tables import Tables
from lade.static.slots import StaticSlots
from lade.static.step import StaticStep

CPU, INDICES = torch.device("cpu"), 6


def made(slots: int) -> tuple[Tables, StaticSlots]:
    model = model_of("llama")
    own = StaticSlots(shelf.shapes_of(model), slots, 300, CPU)
    return Tables(StaticStep(model, own), INDICES), own


def request_in(slot: int, sampled: bool, seed: int = 0, **choosing: Any) -> tuple[Request, Way]:
    request = Request(0, [5, 6, 7], 3, 20, slot=slot)
    noise = Noise(1, CPU, torch.Generator().manual_seed(seed)) if sampled else None
    return request, Way.of(Choosing([request], noise=noise, **choosing))


def test_the_likeliest_token_beside_sampled_ones() -> None:
    """Softmax makes its probability that of the first token; noise of the slot's last request says nothing."""
    tables, slots = made(2)
    vocabulary = tables.ends._known.shape[1]
    likeliest = torch.full((1, vocabulary), 0.1)
    likeliest[0, 9] = torch.nextafter(torch.tensor(0.1), torch.tensor(1.0))
    assert (likeliest.softmax(-1) == likeliest.softmax(-1)[0, 0]).all()
    logits = torch.cat([likeliest, torch.randn(1, vocabulary, generator=torch.Generator().manual_seed(3))])
    top_k = LogitsProcessorList([TopKLogitsWarper(5)])
    sampled = [request_in(slot, True, 7, processors=top_k) for slot in range(2)]
    greedy = request_in(0, False)
    common = shared([greedy[1], sampled[1][1]])
    assert common is not None
    chooser = tables.chooser(common, greedy[1])
    inputs: Any = SimpleNamespace(slots=torch.tensor([0, 1]), orders=torch.zeros(2, dtype=torch.long))
    for request, way in sampled:
        tables.begin(request, way)
        tables.fill(request, way, 20)
    tables.begin(*greedy)
    tables.fill(*greedy, 20)
    found = chooser(logits, inputs, slots).tolist()
    noise = Noise(1, CPU, torch.Generator().manual_seed(7)).at(0, vocabulary)
    probabilities = top_k(torch.zeros(1, 1), logits[1:]).softmax(-1)
    assert found == [9, int((probabilities / noise).argmax())]
    coupled = tables.coupled(chooser)
    assert coupled is not None
    masses = torch.tensor([[0.5, 0.3, 0.2]])
    assert torch.allclose(coupled(torch.tensor([0]), 0, torch.tensor([[3, 4, 5]]), masses), masses)


def test_each_text_ends_at_tokens_of_its_own() -> None:
    tables, _ = made(2)
    vocabulary = tables.ends._known.shape[1]

    def ends(slot: int) -> list[int]:
        tokens = torch.arange(-1, vocabulary)
        return tokens[tables.ends(torch.full_like(tokens, slot), tokens)].tolist()

    tables.begin(*request_in(0, False, ends=frozenset({3, 4, -1, vocabulary})))
    tables.begin(*request_in(1, False, ends=frozenset({5})))
    assert (ends(0), ends(1)) == ([-1, 3, 4], [-1, 5])
    tables.begin(*request_in(0, False))
    assert (ends(0), ends(1)) == ([-1], [-1, 5])


def test_tokens_that_the_model_cannot_read_end_every_text() -> None:
    model = own_llama()
    model.lm_head = torch.nn.Linear(model.lm_head.in_features, model.lm_head.out_features + 2, bias=False)
    slots = StaticSlots(shelf.shapes_of(model), 1, 300, CPU)
    tables = Tables(StaticStep(model, slots), INDICES)
    tables.begin(*request_in(0, False, ends=frozenset({3})))
    last = model.lm_head.out_features - 1
    tokens = torch.tensor([3, 4, last - 2, last - 1, last])
    assert tables.ends(torch.zeros_like(tokens), tokens).tolist() == [True, False, False, True, True]
