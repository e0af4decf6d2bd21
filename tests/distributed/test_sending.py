"""Keys and values of accepted tokens: which ranks lack some, which rank sends them, and what arrives in the cache."""

import pytest
import torch
from families import BY_NAME
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import tiny_model, words
from transformers import DynamicCache, GenerationConfig

from lade.core.stats import Clock
from lade.core.tree import chain
from lade.distributed.sending import Lags, Sent, packed, unpacked
from lade.target.cache import TreeCache
from lade.target.masks import layer_kinds
from lade.target.model import HFTarget


@settings(max_examples=20)
@given(st.data())
def test_who_lacks_what(data: st.DataObject) -> None:
    """Beside a model of each rank's cache: its tokens are a prefix of the text, and what is sent makes them equal."""
    lags, ranks, slots = Lags(3), range(3), range(2)
    cached = {slot: [0] * 3 for slot in slots}
    lengths = dict.fromkeys(slots, 0)
    for slot in slots:
        lags.open(slot)
    for _ in range(data.draw(st.integers(1, 5))):
        for slot in slots:
            length = data.draw(st.integers(0, 4))
            path = list(range(length))  # computed in part by each rank, by one of them whole
            parts = [range(data.draw(st.integers(0, length))) for _ in ranks]
            parts[data.draw(st.sampled_from(ranks))] = range(max(1, length))
            for rank in ranks:
                if parts[rank]:
                    cached[slot][rank] = lengths[slot] + min(length, len(parts[rank]))
            lags.keep(slot, parts, path)
            lengths[slot] += length
            assert lags.of[slot] == [lengths[slot] - cached[slot][rank] for rank in ranks]
        if data.draw(st.booleans()):
            count = data.draw(st.integers(1, 3))
            for sent in lags.sent(slots, count):
                assert cached[sent.slot][sent.source] == lengths[sent.slot]
                for rank in lags.receive(sent):
                    assert cached[sent.slot][rank] >= lengths[sent.slot] - sent.tokens
                    cached[sent.slot][rank] = lengths[sent.slot]
            for slot in slots:
                whole = lengths[slot] in cached[slot]
                assert not whole or cached[slot][:count] == [lengths[slot]] * count


def test_one_source_if_it_can_be() -> None:
    lags = Lags(3)
    lags.of = {0: [0, 2, 0], 1: [1, 3, 0], 2: [0, 0, 0]}
    assert lags.sent([0, 1, 2], 3) == [Sent(0, 2, 2), Sent(1, 3, 2)]
    lags.of[0] = [0, 2, 1]
    assert {sent.source for sent in lags.sent([0, 1], 3)} == {0, 2}
    assert lags.sent([0, 1], 1) == [Sent(1, 1, 2)]
    lags.of[0] = [1, 2, 1]
    assert lags.sent([0], 3) == []


class Rows:
    """Two rows of a model with sliding layers, on one rank."""

    def __init__(self, whether_packed: bool) -> None:
        model = tiny_model(BY_NAME["mistral-sliding"], "sdpa" if whether_packed else "eager")
        cache = TreeCache(DynamicCache(config=model.config), model.config)
        self.target = HFTarget(model, cache, layer_kinds(model.config), None, Clock(), whether_packed)
        batch = words(6, 3)
        positions = (batch["attention_mask"].cumsum(-1) - 1).clamp(min=0)
        inputs = {"attention_mask": batch["attention_mask"], "position_ids": positions, "use_cache": True}
        self.target.prefill(batch["input_ids"], GenerationConfig(), inputs)

    def compute(self, texts: dict[int, list[int]]) -> torch.Tensor:
        drafts = [chain(text, asked=True) for text in texts.values()]
        outputs = self.target.forward(list(texts), drafts)
        self.target.keep(list(texts), [range(len(draft)) for draft in drafts])
        return outputs.logits


@torch.no_grad()
@pytest.mark.parametrize("whether_packed", [True, False], ids=["packed", "padded"])
@pytest.mark.parametrize("length", [5, 100])
def test_what_arrives(whether_packed: bool, length: int) -> None:
    """One cache lacks the end of a long text and a whole short one; more is sent of the other row than it lacks."""
    text = words(length)["input_ids"][0].tolist()
    sender, receiver = Rows(whether_packed), Rows(whether_packed)
    sender.compute({0: text, 1: [7, 9]})
    receiver.compute({0: text[:-3]})
    sent = [Sent(0, 3, 0), Sent(1, 3, 0)]
    buffer = packed(sender.target.cache, sent, 0)
    assert not packed(receiver.target.cache, sent, 1).any()
    unpacked(receiver.target, sent, buffer, [3, 2])
    following = {0: [5], 1: [8]}
    assert torch.allclose(receiver.compute(following), sender.compute(following), atol=1e-5)
