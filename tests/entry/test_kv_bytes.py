"""`lade.Engine(kv_bytes=...)`: buffers of keys and values never grow beyond it, and texts stay plain decoding's."""

import random
from typing import Any

import pytest
import torch
from families import BY_NAME, VOCAB
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import FIRST_WORD, tiny_model

import lade
from lade.target import layers, store
from lade.target.budget import KVBudget

AUTO = lade.LookaheadConfig(mode="auto", budget=16, adapt=False)
PAPER = lade.LookaheadConfig(mode="lookahead", ngram=5, window=15, guesses=15)  # trees of 120 nodes
DRAFTS: dict[str, dict[str, Any]] = {
    "auto": {"config": AUTO},
    "paper": {"config": PAPER},
    "self": {"method": lade.SelfSpeculative(((), (1,)), tokens=8)},  # drafts in slots of the model
}
MODELS = [("llama", "sdpa"), ("llama", "eager"), ("gemma3", "sdpa")]
CASES = [(model, drafts) for model in MODELS for drafts in (DRAFTS if model != MODELS[1] else ["auto"])]


def model_of(name: str, attention: str) -> Any:
    return tiny_model(BY_NAME[name], attention)


def arguments(prompt: list[int], new: int) -> dict[str, Any]:
    ids = torch.tensor([prompt])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "max_new_tokens": new, "do_sample": False}


def stored(engine: lade.Engine) -> int:
    """Bytes of all buffers."""
    buffers = [buffer for layer in engine._target.cache.own_layers() for buffer in (layer.keys, layer.values)]
    return sum(buffer.nbytes for buffer in buffers if buffer is not None)


class Peak:
    """The most bytes that the slots of an engine have reserved at once."""

    def __init__(self, engine: lade.Engine) -> None:
        budget: Any = engine._budget
        reserve, self.bytes = budget.reserve, 0

        def noted(slot: int, tokens: int) -> bool:
            found: bool = reserve(slot, tokens)
            self.bytes = max(self.bytes, budget.reserved)
            return found

        budget.reserve = noted


@pytest.mark.parametrize(("kind", "drafts"), CASES)
@settings(max_examples=2)
@given(data=st.data())
def test_buffers_stay_within(kind: tuple[str, str], drafts: str, data: st.DataObject) -> None:
    model, noise = model_of(*kind), random.Random(data.draw(st.integers(0, 99)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layers, "SLACK", data.draw(st.sampled_from([2, 64])))
        patch.setattr(store, "SPARE", 2)  # slabs grow
        with lade.Engine(model, slots=4, **DRAFTS[drafts], kv_bytes=1) as engine:
            one = engine._budget.bytes(90)  # type: ignore[union-attr]
        limit = int(one * data.draw(st.floats(1, 3)))
        kept = data.draw(st.sampled_from([0, 1 << 20]))  # then sliding layers store more
        with lade.Engine(model, slots=4, **DRAFTS[drafts], kv_bytes=limit, prefix_bytes=kept) as engine:
            peak, running = Peak(engine), []
            for _ in range(data.draw(st.integers(3, 5))):
                prompt = [noise.randrange(FIRST_WORD, VOCAB) for _ in range(data.draw(st.integers(1, 60)))]
                asked = arguments(prompt, data.draw(st.integers(1, 24)))
                running.append((engine.submit(**asked), asked))
                for _ in range(data.draw(st.integers(0, 5))):
                    engine.step()
                    assert stored(engine) <= peak.bytes <= limit
            while engine.step():
                assert stored(engine) <= peak.bytes <= limit
        for request, asked in running:
            assert request.error is None
            with torch.inference_mode():  # the same in less time
                assert request.tokens == model.generate(**asked)[0].tolist()


def test_what_can_never_fit_is_refused() -> None:
    model = model_of("llama", "sdpa")
    token = 2 * model.config.num_hidden_layers * model.config.num_key_value_heads * model.config.head_dim * 4
    limit = (100 + layers.SLACK) * token
    with lade.Engine(model, AUTO, kv_bytes=limit) as engine:
        request = engine.submit(**arguments([7] * 40, 60))
        message = (
            f"input_ids and max_new_tokens must need at most kv_bytes, {limit} bytes of keys and values, "
            rf"got 41 \+ 60 tokens, which may need {limit + token}"
        )
        with pytest.raises(ValueError, match=message):
            engine.submit(**arguments([7] * 41, 60))
        engine.run()
    assert request.emitted == 60


def test_a_budget_that_holds_one_serves_many() -> None:
    model = model_of("llama", "sdpa")
    with lade.Engine(model, AUTO, kv_bytes=1) as engine:
        one = engine._budget.bytes(50)  # type: ignore[union-attr]
    with lade.Engine(model, AUTO, kv_bytes=one) as engine:
        requests = [engine.submit(**arguments([9, 8, 7], new)) for new in (47, 5, 47)]
        most = 0
        while engine.step():
            most = max(most, len(engine._loop.active))
        assert [request.emitted for request in requests] == [47, 5, 47]
        assert most == 1


def test_a_call_of_generate_is_not_bounded() -> None:
    """Nor an engine without the setting."""
    with lade.Engine(model_of("llama", "sdpa"), AUTO) as engine:
        assert engine._loop.admission.budget is None


def test_measuring_leaves_nothing() -> None:
    model = model_of("gemma3", "sdpa")
    with lade.Engine(model, AUTO, kv_bytes=1 << 20) as engine:
        assert isinstance(engine._budget, KVBudget)
        assert engine._target.cache.lengths == {}
        assert stored(engine) == 0


@pytest.mark.parametrize(("name", "attention"), MODELS)
def test_the_longest_text_that_fits(name: str, attention: str) -> None:
    with (
        lade.Engine(model_of(name, attention), AUTO) as free,
        lade.Engine(model_of(name, attention), AUTO, kv_bytes=300_000) as engine,
    ):
        assert free.kv_tokens is None
        longest = engine.kv_tokens
        assert longest is not None
        engine.cancel(engine.submit(**arguments([5, 6], longest - 2)))
        with pytest.raises(ValueError, match="must need at most kv_bytes, 300000 bytes"):
            engine.submit(**arguments([5, 6], longest - 1))
