"""Requests of one tenant whose prompts begin alike: their texts are plain decoding's, what is kept is not computed."""

import copy
import dataclasses
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import accelerate
import peft
import pytest
import torch
from families import BY_NAME, VOCAB
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import FIRST_WORD, tiny_model
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedModel

import lade
from lade.core.request import Request
from lade.target import layers, prefixes
from lade.target.prefixes import CHUNK, PrefixCache

CONFIG = lade.LookaheadConfig(mode="auto", budget=16, adapt=False)
NAMES = ("llama", "mistral-sliding", "gemma3", "gemma4", "gemma2", "gpt2", "gpt_oss", "llama4", "falcon", "deepseek_v3")


def model_of(name: str) -> PreTrainedModel:
    return tiny_model(BY_NAME[name], BY_NAME[name].attention[-1])


def words(count: int, seed: int = 0) -> list[int]:
    noise = random.Random(seed)
    return [noise.randrange(FIRST_WORD, VOCAB) for _ in range(count)]


def greedy(prompt: Sequence[int], new: int) -> dict[str, Any]:
    """Arguments of `generate`; answers may hold the padding token, which is no padding."""
    ids = torch.tensor([prompt])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "max_new_tokens": new, "do_sample": False}


def plain(model: Any, prompt: Sequence[int], new: int) -> list[int]:
    with torch.inference_mode():  # the same in less time
        found: Tensor = model.generate(**greedy(prompt, new))
    return found[0].tolist()


class Watched:
    """An engine, and the tokens of prompts that it computed for each request."""

    def __init__(self, model: Any, **options: Any) -> None:
        if "method" not in options:
            options.setdefault("config", CONFIG)
        self.engine = lade.Engine(model, **options)
        self.kept: PrefixCache = self.engine._prefixes  # type: ignore[assignment]

    @property
    def chunks(self) -> list[Any]:
        return [chunk for holding in self.kept._tenants.values() for chunk in holding.chunks.values()]

    def run(self, prompt: Sequence[int], new: int, tenant: str | None = "ann", **kwargs: Any) -> tuple[list[int], int]:
        """The text of a request that is alone in the engine, and how many tokens of its prompt were computed."""
        request = self.submit(prompt, new, tenant, **kwargs)
        read: list[int] = []
        forward = self.engine._loop.target.forward

        def noted(slots: Any, drafts: Any) -> Any:
            if request.prefilled < request.prompt_length:
                read.append(len(drafts[0]))
            return forward(slots, drafts)

        self.engine._loop.target.forward = noted  # type: ignore[method-assign]
        self.engine.run()
        self.engine._loop.target.forward = forward  # type: ignore[method-assign]
        return request.tokens, sum(read)

    def submit(self, prompt: Sequence[int], new: int, tenant: str | None = "ann", **kwargs: Any) -> Request:
        return self.engine.submit(**greedy(prompt, new), tenant=tenant, **kwargs)


@contextmanager
def watched(model: Any, **options: Any) -> Iterator[Watched]:
    found = Watched(model, **options)
    with found.engine:
        yield found


@pytest.mark.parametrize("name", NAMES)
def test_a_conversation_computes_new_tokens_alone(name: str) -> None:
    """Each prompt is the text so far and a new turn; what is kept ends at a multiple of 64 tokens."""
    model, text = model_of(name), words(70)
    with watched(model) as engine:
        held = 0
        for turn in range(3):
            found, read = engine.run(text, 10)
            assert found == plain(model, text, 10)
            assert read == len(text) - held // CHUNK * CHUNK
            held = len(found) - 1
            text = found + words(5, seed=turn)


METHODS: dict[str, Callable[[PreTrainedModel], Any]] = {
    "lookahead": lambda model: {"config": lade.LookaheadConfig(mode="lookahead", ngram=4, window=5, guesses=5)},
    "draft": lambda model: {"method": lade.DraftModel(model, tokens=4)},
    "candidates": lambda model: {"method": lade.MultiCandidate(model, widths=(3, 2))},
    "self": lambda model: {"method": lade.SelfSpeculative(((), (1,)), tokens=4)},
}


@pytest.mark.parametrize("method", METHODS)
def test_every_method_drafts_behind_what_was_kept(method: str) -> None:
    """A draft model has a KV cache of its own, in which nothing is kept."""
    model, text = model_of("gemma3"), words(70)
    with watched(model, **METHODS[method](model)) as engine:
        first, _ = engine.run(text, 30)
        second, read = engine.run([*first, 9], 30)
    assert first == plain(model, text, 30)
    assert second == plain(model, [*first, 9], 30)
    assert read == 101 - CHUNK


# Who shares


def test_nothing_is_shared_across_tenants() -> None:
    model, text = model_of("llama"), words(140)
    with watched(model) as engine:
        tenants = ["ann", "bob", None, None, "bob", "ann"]
        found = [engine.run(text, 5, tenant) for tenant in tenants]
        assert {chunk.key[0] for chunk in engine.chunks if isinstance(chunk.key[0], str)} == {"ann", "bob"}
    assert [read for _, read in found] == [140, 140, 140, 140, 140 - 2 * CHUNK, 140 - 2 * CHUNK]
    assert [tokens for tokens, _ in found] == [plain(model, text, 5)] * 6


def test_the_tenant_of_the_settings() -> None:
    model, text = model_of("llama"), words(70)
    config = dataclasses.replace(CONFIG, tenant="ann")
    with watched(model, config=config) as engine:
        assert [engine.run(text, 5, tenant)[1] for tenant in (None, "bob", "ann", None)] == [70, 70, 6, 6]
    lade.drop_pools(model)


@pytest.mark.parametrize(("length", "computed"), [(CHUNK, CHUNK), (CHUNK + 1, 1), (2 * CHUNK, CHUNK)])
def test_the_last_token_of_a_prompt_is_always_computed(length: int, computed: int) -> None:
    """Its logits give the first new token."""
    model, text = model_of("llama"), words(2 * CHUNK)
    with watched(model) as engine:
        engine.run(text, 3)
        assert engine.run(text[:length], 3) == (plain(model, text[:length], 3), computed)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_text_that_goes_another_way(name: str) -> None:
    """Full layers serve every beginning; sliding ones have stored the last tokens only."""
    model, text = model_of(name), words(250)
    with watched(model) as engine:
        engine.run(text, 3)
        other = [*text[:130], *words(20, seed=1)]
        assert engine.run(other, 3) == (plain(model, other, 3), 150 - (2 * CHUNK if name == "llama" else 0))
        assert engine.run(other, 3)[1] == 150 - 2 * CHUNK


# What is kept


def size_of_a_chunk(model: PreTrainedModel) -> int:
    with watched(model) as engine:
        engine.run(words(CHUNK + 2), 1)
        return engine.kept.bytes


def test_the_least_recently_used_go_first() -> None:
    model, texts = model_of("llama"), [words(2 * CHUNK + 2, seed) for seed in range(3)]
    size = size_of_a_chunk(model)
    with watched(model, prefix_bytes=5 * size) as engine:
        for text in texts[:2]:
            engine.run(text, 1)
        engine.run(texts[0], 1)  # now the second one is the oldest
        engine.run(texts[2], 1)
        assert engine.kept.bytes == 5 * size
        assert [engine.run(texts[index], 1)[1] for index in (0, 2, 1)] == [2, 2, 2 + CHUNK]


def test_a_tenant_loses_nothing_to_others_within_its_share() -> None:
    """Ann holds two chunks of six, and used them first; bob, who holds more, makes room for his own texts."""
    model, texts = model_of("llama"), [words(2 * CHUNK + 2, seed) for seed in range(5)]
    with watched(model, prefix_bytes=6 * size_of_a_chunk(model)) as engine:
        engine.run(texts[0], 1)
        for text in texts[1:]:
            engine.run(text, 1, "bob")
        assert engine.run(texts[0], 1)[1] == 2
        assert engine.run(texts[1], 1, "bob")[1] == 2 + 2 * CHUNK
    with watched(model, prefix_bytes=6 * size_of_a_chunk(model)) as engine:
        for text in texts[:3]:
            engine.run(text, 1, "bob")
        engine.run(texts[3], 1)
        engine.run(texts[4], 1)  # their shares are equal now
        assert [len(holding.chunks) for holding in engine.kept._tenants.values()] == [3, 3]


def test_dropped_prefixes() -> None:
    """Nor is the text kept that decodes meanwhile."""
    model, text = model_of("llama"), words(70)
    with watched(model) as engine:
        engine.run(text, 2)
        engine.run(text, 2, "bob")
        request = engine.submit(text, 20)
        engine.engine.step()
        engine.engine.drop_prefixes("ann")
        engine.engine.run()
        assert request.finished
        assert engine.run(text, 2, "bob")[1] == 6
        assert engine.run(text, 2)[1] == 70
        engine.engine.drop_prefixes()
        assert (engine.chunks, engine.kept.bytes) == ([], 0)
        with pytest.raises(ValueError, match="tenant must be"):
            engine.engine.drop_prefixes("")
    with lade.Engine(model, CONFIG, prefix_bytes=0) as off:
        off.drop_prefixes()


def test_a_request_that_decodes_uses_its_beginning() -> None:
    model, texts = model_of("llama"), [words(2 * CHUNK + 2, seed) for seed in range(3)]
    with watched(model) as engine:
        engine.run(texts[0], 1)
        engine.run(texts[1], 1)
        engine.kept.capacity = engine.kept.bytes
        request = engine.submit(texts[0], 50)
        engine.engine.step()
        other = engine.submit(texts[2], 1)
        while not other.finished:
            engine.engine.step()
        assert not request.finished
        first = {chunk.key[1][0] for chunk in engine.chunks if chunk.key[0] == "ann"}
        assert first == {texts[0][0], texts[2][0]}


def test_the_cap_is_in_bytes_of_keys_and_values() -> None:
    model, text = model_of("llama"), words(250)
    config = model.config
    floats = (
        2 * config.num_hidden_layers * config.num_key_value_heads * config.hidden_size // config.num_attention_heads
    )
    size = CHUNK * (4 * floats + 8)
    with watched(model, prefix_bytes=2 * size + size // 2) as engine:
        for _ in range(2):
            engine.run(text, 3)
            assert engine.kept.bytes == 2 * size
            assert sum(part.nbytes for chunk in engine.chunks for part in chunk.parts) == 2 * (size - 8 * CHUNK)
        assert engine.run(text, 3) == (plain(model, text, 3), 250 - 2 * CHUNK)
    with watched(model, prefix_bytes=size - 1) as engine:
        engine.run(text, 3)
        assert (engine.kept.bytes, len(engine.chunks)) == (0, 0)


def test_a_cancelled_request_is_kept_as_far_as_it_was_computed() -> None:
    model, text = model_of("llama"), words(200)
    with watched(model) as engine:
        engine.engine._loop.step_tokens = 150
        request = engine.submit(text, 30)
        engine.engine.step()
        assert request.prefilled == 150
        engine.engine.cancel(request)
        assert engine.run(text, 3) == (plain(model, text, 3), 200 - 128)
        request = engine.submit([*text, 9], 30)
        while request.emitted < 8:
            engine.engine.step()
        engine.engine.cancel(request)
        engine.engine.step()
        assert engine.run(request.tokens, 3) == (plain(model, request.tokens, 3), len(request.tokens) - 192)


class Fails(LogitsProcessor):
    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if input_ids.shape[1] > 75:
            raise LookupError("no scores")
        return scores


def test_a_failed_request_is_not_kept() -> None:
    with watched(model_of("llama")) as engine:
        request = engine.submit(words(70), 30, logits_processor=LogitsProcessorList([Fails()]))
        engine.engine.run()
        assert isinstance(request.error, LookupError)
        assert len(engine.chunks) == 0


def test_an_interrupted_step_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tokens are emitted, and their keys and values are not where they belong."""

    def interrupted(*args: Any) -> None:
        raise KeyboardInterrupt

    with watched(model_of("llama")) as engine:
        request = engine.submit(words(70), 30)
        engine.engine.step()
        with monkeypatch.context() as patch:
            patch.setattr(engine.engine._loop.target, "keep", interrupted)
            with pytest.raises(KeyboardInterrupt):
                engine.engine.step()
        engine.engine.cancel(request)
        engine.engine.step()
        assert request.finished
        assert engine.chunks == []


def test_nothing_is_left_after_close() -> None:
    with watched(model_of("llama")) as engine:
        engine.run(words(70), 5)
        request = engine.submit(words(150), 30)
        engine.engine.step()
        assert len(engine.chunks) == 1
    assert request.finished
    assert (len(engine.chunks), engine.kept.bytes) == (0, 0)


def test_off() -> None:
    with lade.Engine(model_of("llama"), CONFIG, prefix_bytes=0) as engine:
        assert engine._loop.admission.prefixes is None
        request = engine.submit(**greedy(words(70), 5), tenant="ann")
        engine.run()
    assert request.tokens == plain(model_of("llama"), words(70), 5)


@pytest.mark.parametrize("name", ["read", "write"])
def test_no_memory_for_a_copy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept is given up, and decoding goes on."""

    def full(*args: Any) -> None:
        raise torch.OutOfMemoryError("full")

    model, text = model_of("gemma3"), words(140)
    longer = [*text, *words(CHUNK)]
    with watched(model) as engine:
        engine.run(text, 5)
        with monkeypatch.context() as patch:
            patch.setattr(prefixes.Stack, name, full)
            computed = len(longer) - (2 * CHUNK if name == "read" else 0)
            assert engine.run(longer, 5) == (plain(model, longer, 5), computed)
            assert len(engine.chunks) == (0 if name == "read" else 3)
        assert engine.run(longer, 5)[0] == plain(model, longer, 5)


# A model that changes


def switched(model: Any) -> None:
    model.set_adapter("second")


def scaled(model: Any) -> None:
    for module in model.modules():
        if "_active_adapter" in vars(module):
            module.scaling["first"] *= 2


def disabled(model: Any) -> None:
    model.base_model.disable_adapter_layers()


@torch.no_grad()
def written(model: Any) -> None:
    next(model.parameters()).mul_(1.5)


def written_as_data(model: Any) -> None:
    next(model.parameters()).data.mul_(1.5)


def replaced(model: Any) -> None:
    layer = model.get_base_model().model.layers[0].self_attn.k_proj
    layer.weight = torch.nn.Parameter(layer.weight * 1.5)


def slower_rotation(model: Any) -> None:
    model.get_base_model().model.rotary_emb.inv_freq.mul_(0.5)


class Doubles(accelerate.hooks.ModelHook):
    def post_forward(self, module: Any, output: Any) -> Any:
        return output * 2


def hooked(model: Any) -> None:
    accelerate.hooks.add_hook_to_module(model.get_base_model().model.layers[0].mlp, Doubles())


def adapted() -> Any:
    """A model with two adapters, the first one active."""
    settings = peft.LoraConfig(task_type="CAUSAL_LM", r=4, init_lora_weights=False, target_modules=["q_proj", "v_proj"])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = peft.get_peft_model(copy.deepcopy(model_of("llama")), settings, "first")
        model.add_adapter("second", settings)
    return model.eval()


CHANGES = (switched, scaled, disabled, written, written_as_data, replaced, slower_rotation, hooked)


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_model_computes_all_anew(change: Callable[[Any], None]) -> None:
    model, text = adapted(), words(140)
    with watched(model) as engine:
        before = plain(model, text, 12)
        assert engine.run(text, 12) == (before, 140)
        assert engine.run(text, 12) == (before, 140 - 2 * CHUNK)
        change(model)
        after = plain(model, text, 12)
        assert after != before
        assert engine.run(text, 12) == (after, 140)
        assert engine.run(text, 12) == (after, 140 - 2 * CHUNK)


def test_a_changed_configuration() -> None:
    model, text = copy.deepcopy(model_of("llama")), words(70)
    with watched(model) as engine:
        engine.run(text, 5)
        model.config.rms_norm_eps = 1e-3
        assert engine.run(text, 5)[1] == 70


def test_a_text_across_a_change_is_not_kept() -> None:
    """Some of its keys and values are of the model before, whatever the model is in the end."""
    model, text = adapted(), words(140)
    with watched(model) as engine:
        request = engine.submit(text, 20)
        while request.emitted < 5:
            engine.engine.step()
        model.set_adapter("second")
        engine.run(words(70, seed=1), 2)  # `request` ends beside it, or behind it
        assert request.finished
        assert engine.run(text, 20) == (plain(model, text, 20), 140)


# The law


class Conversations:
    """Texts of some tenants that grow out of each other, several at once."""

    def __init__(self, model: PreTrainedModel, data: st.DataObject) -> None:
        self.model, self.data = model, data
        self.texts: dict[str, list[list[int]]] = {"ann": [], "bob": []}
        self.running: list[tuple[Request, str, list[int], int]] = []

    def prompt(self, tenant: str) -> list[int]:
        """The beginning of a text that somebody has had, and some tokens more."""
        earlier = [text for texts in self.texts.values() for text in texts]
        text = self.data.draw(st.sampled_from(earlier)) if earlier else []
        cut = self.data.draw(st.just(len(text)) | st.integers(0, len(text)))
        more = self.data.draw(st.lists(st.integers(FIRST_WORD, VOCAB - 1), min_size=1, max_size=9))
        return [*text[:cut], *more][-60:]

    def submit(self, engine: lade.Engine) -> None:
        tenant = self.data.draw(st.sampled_from(sorted(self.texts)))
        prompt, new = self.prompt(tenant), self.data.draw(st.integers(1, 12))
        self.running.append((engine.submit(**greedy(prompt, new), tenant=tenant), tenant, prompt, new))

    def check(self) -> None:
        """What has ended is plain decoding's text, or its beginning where it was cancelled."""
        for each in list(self.running):
            request, tenant, prompt, new = each
            if request.finished:
                self.running.remove(each)
                expected = plain(self.model, prompt, new)
                assert request.tokens == (expected[: len(request.tokens)] if request.cancelled else expected)
                self.texts[tenant].append(request.tokens)


def assert_consistent(kept: PrefixCache) -> None:
    assert kept.bytes <= kept.capacity
    for tenant, holding in kept._tenants.items():
        chunks = list(holding.chunks.values())
        assert holding.bytes == sum(chunk.bytes for chunk in chunks) > 0
        for age, chunk in enumerate(chunks):
            before = chunk.key[0]
            assert before == tenant or before in chunks[age + 1 :]  # it goes after those behind it


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt_oss"])
@settings(max_examples=8)
@given(data=st.data())
def test_texts_are_those_of_plain_decoding(name: str, data: st.DataObject) -> None:
    model = model_of(name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefixes, "CHUNK", 4)
        patch.setattr(prefixes, "MARGIN", 8)
        patch.setattr(layers, "SLACK", data.draw(st.integers(0, 3)))
        capacity = data.draw(st.sampled_from([1 << 14, 1 << 20]))
        with watched(model, slots=3, prefix_bytes=capacity) as engine:
            talks = Conversations(model, data)
            for _ in range(data.draw(st.integers(2, 14))):
                what = data.draw(st.integers(0, 5))
                if what < 3:
                    talks.submit(engine.engine)
                elif what == 3 and talks.running:
                    engine.engine.cancel(data.draw(st.sampled_from(talks.running))[0])
                for _ in range(data.draw(st.integers(0, 6))):
                    engine.engine.step()
                talks.check()
                assert_consistent(engine.kept)
            engine.engine.run()
            talks.check()
            assert not talks.running
