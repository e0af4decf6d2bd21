"""Images and sound in `lade.Engine.submit`: each text is that of `model.generate` for its prompt alone."""

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from multimodal import BY_TYPE, IMAGE, KINDS, Kind, image_model, image_prompt, text
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

import lade
from lade.entry.beside import is_read_at_once, prefill_of
from lade.entry.submission import prepared
from lade.target.imageprefixes import image_prefixes

NEW_TOKENS = 24
GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": NEW_TOKENS}
SAMPLED: dict[str, Any] = {"do_sample": True, "temperature": 0.5, "max_new_tokens": NEW_TOKENS}
CONFIG = lade.LookaheadConfig(mode="auto", budget=16, adapt=False)
STATIC = replace(CONFIG, static=True)
EACH = pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.model_type) for kind in KINDS])
LLAVA, QWEN = BY_TYPE["llava"], BY_TYPE["qwen2_vl"]
CHUNK = 64  # tokens of a kept prefix


def plain(model: PreTrainedModel, prompt: dict[str, Tensor], seed: int = 0, **kwargs: Any) -> list[int]:
    torch.manual_seed(seed)
    tokens: list[int] = model.generate(**prompt, **kwargs)[0].tolist()
    return tokens


@contextmanager
def opened(kind: Kind, config: lade.LookaheadConfig | None = CONFIG, **kwargs: Any) -> Iterator[lade.Engine]:
    """At its end nothing is left."""
    with lade.Engine(image_model(kind), config, **{"slots": 3, **kwargs}) as engine:
        yield engine
        target = engine._target
        assert not target.positions
        assert not target.cache.lengths
        if target.clock.steps:
            assert all(layer.prefix is None for layer in target.cache.own_layers())


@EACH
@pytest.mark.parametrize("config", [CONFIG, STATIC], ids=["eager", "static"])
def test_beside_other_requests(kind: Kind, config: lade.LookaheadConfig) -> None:
    """Five requests in three slots: images, text and seeded samples, of which some arrive while others decode."""
    model = image_model(kind)
    calls = [
        (image_prompt(kind, 9), GREEDY),
        (text(11), GREEDY),
        (image_prompt(kind, 4, seed=1), SAMPLED),
        (image_prompt(kind, 17, seed=2), GREEDY),
        (text(5), SAMPLED),
    ]
    with opened(kind, config) as engine:
        requests = []
        for prompt, kwargs in calls:
            requests.append(engine.submit(**prompt, **kwargs, seed=3))
            engine.step()
        engine.run()
        assert engine.not_static is None
    for request, (prompt, kwargs) in zip(requests, calls, strict=True):
        assert request.error is None
        assert request.tokens == plain(model, prompt, 3, **kwargs)
    assert sum(sum(each.tally.accepted.values()) for each in requests) > len(requests)


@pytest.mark.compat
@pytest.mark.parametrize("kind", [LLAVA, QWEN], ids=lambda kind: kind.model_type)
def test_equal_tokens_of_unequal_images(kind: Kind) -> None:
    """One tenant's prompts begin with the same tokens, and nothing of one image is taken for the other."""
    prompts = [image_prompt(kind, CHUNK + 10) | kind.image(seed) for seed in (0, 5)]
    assert prompts[0]["input_ids"].equal(prompts[1]["input_ids"])
    expected = [plain(image_model(kind), prompt, **GREEDY) for prompt in prompts]
    assert expected[0] != expected[1]
    with opened(kind) as engine:
        for prompt, tokens in zip(prompts, expected, strict=True):
            request = engine.submit(**prompt, **GREEDY, tenant="one")
            engine.run()
            assert request.tokens == tokens
            assert request.cached == 0
        alone = {"input_ids": prompts[0]["input_ids"], "attention_mask": prompts[0]["attention_mask"]}
        if kind is LLAVA:  # placeholders without an image are text
            request = engine.submit(**alone, **GREEDY, tenant="one")
            engine.run()
            assert request.tokens == plain(image_model(kind), alone, **GREEDY)


def longer(kind: Kind, prompt: dict[str, Tensor], *parts: Tensor) -> dict[str, Tensor]:
    """A prompt with further text behind it."""
    ids = torch.cat([prompt["input_ids"], *parts], dim=1)
    found = prompt | {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return found if kind.types is None else found | {kind.types: (ids == IMAGE).long()}


@pytest.mark.compat
@pytest.mark.parametrize("config", [CONFIG, STATIC], ids=["eager", "static"])
@pytest.mark.parametrize("kind", [LLAVA, QWEN, BY_TYPE["gemma3"]], ids=lambda kind: kind.model_type)
def test_a_conversation_about_an_image(
    kind: Kind, config: lade.LookaheadConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later turns compute what is new alone; with another image all is."""
    model, prompt = image_model(kind), image_prompt(kind, 100)
    new: dict[str, Any] = {"do_sample": False, "max_new_tokens": 40, "suppress_tokens": [IMAGE]}
    with opened(kind, config) as engine:
        held, whole = 0, list[int]()
        read = engine._steps.read

        def noted(*given: Any) -> Any:
            whole.append(turn)
            return read(*given)

        monkeypatch.setattr(engine._steps, "read", noted)
        for turn in range(3):
            request = engine.submit(**prompt, **new, tenant="one")
            engine.run()
            assert whole == [0]
            assert request.tokens == plain(model, prompt, **new)
            assert request.cached == held // CHUNK * CHUNK
            held = len(request.tokens) - 1
            answer = torch.tensor([request.tokens[request.prompt_length :]])
            prompt = longer(kind, prompt, answer, text(5 + turn)["input_ids"])
        for other, tenant in ((prompt | kind.image(7), "one"), (prompt, "two")):
            request = engine.submit(**other, **new, tenant=tenant)
            engine.run()
            assert request.cached == 0
            assert request.tokens == plain(model, other, **new)


def test_what_comes_before_an_image_is_shared() -> None:
    """With texts, but not with prompts whose images are not in it."""
    begin = text(CHUNK + 6)["input_ids"]
    alone = {"input_ids": begin, "attention_mask": torch.ones_like(begin)}
    shown = image_prompt(LLAVA, 9)
    shown["input_ids"] = torch.cat([begin, shown["input_ids"]], dim=1)
    shown["attention_mask"] = torch.ones_like(shown["input_ids"])
    with opened(LLAVA) as engine:
        for prompt, cached in ((shown, 0), (alone, CHUNK), (shown, 0)):
            request = engine.submit(**prompt, **GREEDY, tenant="one")
            engine.run()
            assert request.cached == cached
            assert request.tokens == plain(image_model(LLAVA), prompt, **GREEDY)


def test_inputs_whose_tokens_are_not_known() -> None:
    """With sound or a video beside the image nothing is kept."""
    call = prepared(image_model(LLAVA), **image_prompt(LLAVA, 9), **GREEDY)
    given, more = call.model_kwargs, torch.ones(1)
    with opened(LLAVA) as engine:
        kept = engine._prefixes
        assert kept is not None
        assert image_prefixes(kept, call) is not None
        for others in ({"input_features": more}, {"mm_encoder_outputs": {"image": more, "video": more}}):
            assert image_prefixes(kept, replace(call, model_kwargs=given | others)) is None
        words = torch.full_like(call.input_ids, 5)
        assert image_prefixes(kept, replace(call, input_ids=words)) is None


def test_sound_is_not_kept() -> None:
    """Which tokens stand for it is not known."""
    kind = BY_TYPE["qwen2_audio"]
    prompt = image_prompt(kind, CHUNK + 10)
    with opened(kind) as engine:
        for _ in range(2):
            request = engine.submit(**prompt, **GREEDY, tenant="one")
            engine.run()
            assert request.cached == 0
            assert request.tokens == plain(image_model(kind), prompt, **GREEDY)


class Arrival(NamedTuple):
    """A request of random kind, which comes some steps after the one before it."""

    what: str
    length: int
    seed: int
    sampled: bool
    wait: int
    cancelled: bool

    def prompt(self, kind: Kind) -> dict[str, Tensor]:
        if self.what == "text":
            return text(self.length)
        prompt = image_prompt(kind, self.length, seed=self.seed)
        if self.what == "unfit":
            prompt["input_ids"] = prompt["input_ids"].where(prompt["input_ids"] != IMAGE, 5)
        return prompt

    @property
    def kwargs(self) -> dict[str, Any]:
        return SAMPLED if self.sampled else GREEDY


ARRIVALS = st.lists(
    st.builds(
        Arrival,
        st.sampled_from(["image", "image", "text", "unfit"]),
        st.integers(1, 90),
        st.integers(0, 9),
        st.booleans(),
        st.integers(0, 5),
        st.sampled_from([False, False, True]),
    ),
    min_size=2,
    max_size=8,
)


@settings(max_examples=12)
@given(ARRIVALS, st.sampled_from([LLAVA, QWEN, BY_TYPE["gemma3"]]), st.sampled_from([CONFIG, STATIC]))
def test_any_crowd(arrivals: list[Arrival], kind: Kind, config: lade.LookaheadConfig) -> None:
    """Whoever comes, fails or leaves: the others' texts are those of their prompts alone."""
    model = image_model(kind)
    with opened(kind, config, slots=2) as engine:
        requests = []
        for arrival in arrivals:
            for _ in range(arrival.wait):
                engine.step()
            requests.append(engine.submit(**arrival.prompt(kind), **arrival.kwargs, seed=3, tenant="one"))
            if arrival.cancelled:
                engine.step()
                engine.cancel(requests[-1])
        engine.run()
    for request, arrival in zip(requests, arrivals, strict=True):
        assert request.finished
        if arrival.what == "unfit":
            assert request.cancelled or request.error is not None
            continue
        expected = plain(model, arrival.prompt(kind), 3, **arrival.kwargs)
        assert request.tokens == expected[: len(request.tokens)]
        assert arrival.cancelled or request.tokens == expected


def test_one_image_a_step() -> None:
    with opened(LLAVA) as engine:
        requests = [engine.submit(**image_prompt(LLAVA, 9, seed=seed), **GREEDY) for seed in range(3)]
        for begun in (1, 2, 3):
            engine.step()
            assert [bool(request.emitted) for request in requests] == [True] * begun + [False] * (3 - begun)
        engine.run()


@pytest.mark.compat
@pytest.mark.parametrize("config", [CONFIG, STATIC], ids=["eager", "static"])
def test_an_image_that_does_not_fit(config: lade.LookaheadConfig) -> None:
    """The model refuses it in its forward; other requests go on, and the slot is free again."""
    prompt = image_prompt(LLAVA, 9)
    wrong = prompt | {"input_ids": prompt["input_ids"].where(prompt["input_ids"] != IMAGE, 5)}
    model = image_model(LLAVA)
    with opened(LLAVA, config, slots=2) as engine:
        beside = engine.submit(**text(11), **GREEDY)
        engine.step()
        request = engine.submit(**wrong, **GREEDY)
        engine.step()
        assert request.finished
        assert isinstance(request.error, ValueError)
        assert beside.emitted
        assert not beside.finished
        after = engine.submit(**prompt, **GREEDY)
        engine.run()
        assert beside.tokens == plain(model, text(11), **GREEDY)
        assert after.tokens == plain(model, prompt, **GREEDY)


INTERRUPTS: dict[str, tuple[Callable[[lade.Engine], tuple[Any, str]], BaseException]] = {
    "while it is read": (lambda engine: (engine.model.model.language_model, "forward"), KeyboardInterrupt()),
    # What the others hold may be half moved then.
    "as it moves": (lambda engine: (engine._target.cache, "end_prefill"), RuntimeError("no memory")),
}


@pytest.mark.parametrize(("place", "error"), INTERRUPTS.values(), ids=INTERRUPTS)
def test_an_interrupt_of_an_image(
    place: Callable[[lade.Engine], tuple[Any, str]], error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that decode end, and what comes later is right."""
    model, prompt = image_model(LLAVA), image_prompt(LLAVA, 9)

    def interrupt(*args: Any, **kwargs: Any) -> None:
        raise error

    with opened(LLAVA) as engine:
        beside = engine.submit(**text(11), **GREEDY)
        engine.step()
        request = engine.submit(**prompt, **GREEDY)
        with monkeypatch.context() as patched:
            patched.setattr(*place(engine), interrupt)
            with pytest.raises(type(error)):
                engine.step()
        assert isinstance(request.error, RuntimeError)
        assert isinstance(beside.error, RuntimeError)
        again = [engine.submit(**each, **GREEDY) for each in (prompt, text(11))]
        engine.run()
        assert [each.tokens for each in again] == [plain(model, each, **GREEDY) for each in (prompt, text(11))]


def test_ended_before_it_is_read() -> None:
    """Cancelled in the queue, and ended by its first token."""
    prompt = image_prompt(LLAVA, 9)
    first = plain(image_model(LLAVA), prompt, **GREEDY)[prompt["input_ids"].shape[1]]
    with opened(LLAVA) as engine:
        cancelled = engine.submit(**prompt, **GREEDY)
        engine.cancel(cancelled)
        ended = engine.submit(**prompt, **GREEDY, eos_token_id=first)
        short = engine.submit(**prompt, do_sample=False, max_new_tokens=1)
        engine.run()
        assert (cancelled.emitted, ended.emitted, short.emitted) == (0, 1, 1)
        assert ended.tokens == short.tokens == [*prompt["input_ids"][0].tolist(), first]


def test_log_probabilities() -> None:
    """The first token's come from the forward that reads the image."""
    prompt = image_prompt(QWEN, 9)
    with opened(QWEN) as engine:
        request = engine.submit(**prompt, **GREEDY, logprobs=2)
        engine.run()
    out = image_model(QWEN).generate(**prompt, **GREEDY, return_dict_in_generate=True, output_logits=True)
    assert request.logprobs is not None
    ours = torch.tensor([each.logprob for each in request.logprobs.emitted])
    theirs = torch.cat(out.logits).log_softmax(-1)
    chosen = torch.tensor(request.tokens[request.prompt_length :])
    torch.testing.assert_close(ours, theirs.gather(1, chosen[:, None])[:, 0], rtol=1e-4, atol=1e-4)


def test_within_a_bound_of_bytes() -> None:
    kind = BY_TYPE["gemma3"]
    prompts = [image_prompt(kind, 9, seed=seed) for seed in range(3)]
    with opened(kind, kv_bytes=1 << 17) as engine:
        requests = [engine.submit(**prompt, **GREEDY) for prompt in prompts]
        engine.run()
    assert [each.tokens for each in requests] == [plain(image_model(kind), each, **GREEDY) for each in prompts]


def test_drafts_of_a_model() -> None:
    model, prompt = image_model(LLAVA), image_prompt(LLAVA, 9)
    with opened(LLAVA, None, method=lade.SelfSpeculative(((1,), ()), tokens=8, adapt="fixed"), slots=2) as engine:
        requests = [engine.submit(**each, **GREEDY) for each in (prompt, text(9))]
        engine.run()
    assert [each.tokens for each in requests] == [plain(model, each, **GREEDY) for each in (prompt, text(9))]


def test_memory_of_images_goes_when_they_are_read() -> None:
    prompt = image_prompt(LLAVA, 9)
    with opened(LLAVA) as engine:
        request = engine.submit(**prompt, **GREEDY)
        assert request.prefill is not None
        held = weakref.ref(request.prefill)
        engine.step()
        gc.collect()
        assert held() is None
        engine.run()


# Refusals


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda ids: {"past_key_values": DynamicCache()}, "past_key_values must be None for images"),
        (lambda ids: {"attention_mask": (torch.arange(ids.shape[1]) > 0).long()[None]}, "attention_mask must be ones"),
        (lambda ids: {"logprobs": 1, "prompt_logprobs": True}, "prompt_logprobs must be False"),
    ],
    ids=["cache", "padding", "prompt_logprobs"],
)
def test_refused_beside_images(change: Any, message: str) -> None:
    prompt = image_prompt(LLAVA, 9)
    with opened(LLAVA) as engine, pytest.raises(ValueError, match=message):
        engine.submit(**prompt | change(prompt["input_ids"]), **GREEDY)


def test_a_cache_of_several_axes() -> None:
    """The model remembers where the image of its last call ended; in an engine that is any request's."""
    model, prompt = image_model(QWEN), image_prompt(QWEN, 9)
    cache = DynamicCache(config=model.config.get_text_config())
    begun = model.generate(**prompt, **GREEDY, past_key_values=cache)
    ids = torch.cat([begun, text(7)["input_ids"]], dim=1)
    with (
        opened(QWEN) as engine,
        pytest.raises(ValueError, match="must be None for images, and for positions on several"),
    ):
        engine.submit(ids, attention_mask=torch.ones_like(ids), past_key_values=cache, **GREEDY)


def test_prompts_that_would_decode_plainly() -> None:
    """One that ends in an image."""
    prompt = image_prompt(QWEN, 9)
    end = int((prompt["input_ids"][0] == IMAGE).nonzero().max()) + 1
    cut = prompt | {name: prompt[name][:, :end] for name in ("input_ids", "attention_mask", "mm_token_type_ids")}
    with opened(QWEN) as engine, pytest.raises(ValueError, match="unequal positions"):
        engine.submit(**cut, **GREEDY)


def test_text_whose_positions_are_not_its_tokens() -> None:
    """It is read as the model reads it: PaliGemma counts from 1."""
    model, prompt = image_model(LLAVA), text(9)
    counted = prompt | {"position_ids": torch.arange(1, 10)[None]}
    call = prepared(model, **counted, **GREEDY)
    assert is_read_at_once(call, None, prompt_logprobs=False)
    with opened(LLAVA) as engine:
        request = engine.submit(**prompt, **GREEDY)
        request.prefill = prefill_of(call, engine._steps)
        engine.run()
    assert request.tokens == plain(model, counted, **GREEDY)
    padded = text(9, 4)
    row = {name: value[1:] for name, value in padded.items()}
    assert not is_read_at_once(prepared(model, **row, **GREEDY), None, prompt_logprobs=False)
