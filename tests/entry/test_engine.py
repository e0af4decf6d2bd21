"""`lade.Engine`: whatever decodes beside a request, its text is that of `model.generate` for its prompt alone."""

import copy
import gc
import random
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from families import BY_NAME, PAD, VOCAB
from sidebyside import Recorder, story
from tiny import FIRST_WORD, tiny_model
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedModel, StoppingCriteria, StoppingCriteriaList

import lade
from lade.core.request import Request
from lade.drafters import compiling
from lade.pace.reading import ReadingPace

CONFIG = lade.LookaheadConfig(mode="auto", budget=16, adapt=False)
IDS = torch.tensor([[5, 6, 7]])
NAMES = ("llama", "mistral-sliding", "gemma3", "gpt2", "gpt_oss", "falcon", "mixtral", "opt")
SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"repetition_penalty": 1.3},
    {"no_repeat_ngram_size": 2},
    {"min_new_tokens": 4, "eos_token_id": [5, 7, 11, 13, 17, 19, 23, 29]},
    {"eos_token_id": [5, 7, 11, 13, 17, 19, 23, 29]},
    {"do_sample": True, "temperature": 0.8, "top_k": 8},
    {"do_sample": True, "top_p": 0.9, "repetition_penalty": 1.2},
)


class Arrival:
    """One request of a random crowd, and what plain decoding writes for it."""

    def __init__(self, model: PreTrainedModel, noise: random.Random, vocabulary: int) -> None:
        prompt = [noise.randrange(FIRST_WORD, vocabulary) for _ in range(noise.choice([1, 2, 5, 9, 30, 60]))]
        self.ids, self.seed, self.wait = torch.tensor([prompt]), noise.randrange(1000), noise.randrange(4)
        self.kwargs = {"do_sample": False, "max_new_tokens": noise.randint(5, 18), **noise.choice(SETTINGS)}
        self.cancelled_after = noise.randrange(12) if noise.random() < 0.15 else None
        torch.manual_seed(self.seed)
        with torch.inference_mode():  # the same in less time
            self.plain: list[int] = model.generate(self.ids, **self.kwargs)[0].tolist()

    def submit(self, engine: lade.Engine) -> Request:
        return engine.submit(self.ids, seed=self.seed, **self.kwargs)


def crowd(engine: lade.Engine, arrivals: list[Arrival]) -> list[Request]:
    """Let them all arrive, each after its wait, and step until nobody is left."""
    requests: list[Request] = []
    steps: list[int] = []

    def step() -> bool:
        left = engine.step()
        for index, (request, arrival) in enumerate(zip(requests, arrivals, strict=False)):
            steps[index] += 1
            if steps[index] == arrival.cancelled_after:
                engine.cancel(request)
        return left

    for arrival in arrivals:
        for _ in range(arrival.wait):
            step()
        requests.append(arrival.submit(engine))
        steps.append(0)
    while step():
        pass
    return requests


@pytest.mark.parametrize("name", NAMES)
def test_neighbours_do_not_matter(name: str) -> None:
    model = tiny_model(BY_NAME[name], BY_NAME[name].attention[-1])
    noise = random.Random(name)
    arrivals = [Arrival(model, noise, VOCAB) for _ in range(10)]
    state = torch.get_rng_state()
    with lade.Engine(model, CONFIG, slots=4) as engine:
        requests = crowd(engine, arrivals)
    assert torch.equal(torch.get_rng_state(), state)
    for request, arrival in zip(requests, arrivals, strict=True):
        assert request.finished
        assert request.error is None
        if arrival.cancelled_after is None:
            assert request.tokens == arrival.plain
        else:
            assert request.tokens == arrival.plain[: len(request.tokens)]


def late_start(engine: lade.Engine, prompts: list[Tensor]) -> list[Request]:
    """The second prompt arrives when the first one is half done."""
    first = engine.submit(prompts[0], max_new_tokens=18, do_sample=False)
    while first.emitted < 10:
        engine.step()
    second = engine.submit(prompts[1], max_new_tokens=18, do_sample=False)
    engine.run()
    return [first, second]


METHODS: dict[str, Callable[[PreTrainedModel], Any]] = {
    "auto": lambda model: {"config": CONFIG},
    "lookahead": lambda model: {"config": lade.LookaheadConfig(mode="lookahead", ngram=4, window=5, guesses=5)},
    "draft": lambda model: {"method": lade.DraftModel(model, tokens=4)},
    "candidates": lambda model: {"method": lade.MultiCandidate(model, widths=(3, 2))},
    "self": lambda model: {"method": lade.SelfSpeculative(((), (1,)), tokens=4)},
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral-sliding"])
def test_who_joins_late_drafts_at_once(name: str, method: str) -> None:
    """A draft model has not read the prompt of a late joiner, whose first step must have a draft all the same."""
    model = tiny_model(BY_NAME[name], BY_NAME[name].attention[-1])
    prompts = [torch.tensor([list(range(FIRST_WORD, FIRST_WORD + length))]) for length in (9, 12)]
    with lade.Engine(model, slots=3, **METHODS[method](model)) as engine:
        drafts: dict[int, list[int]] = {}
        forward = engine._loop.target.forward

        def noted(slots: Any, trees: Any) -> Any:
            for slot, tree in zip(slots, trees, strict=True):
                drafts.setdefault(slot, []).append(len(tree))
            return forward(slots, trees)

        engine._loop.target.forward = noted  # type: ignore[method-assign]
        requests = late_start(engine, prompts)
    for request, prompt in zip(requests, prompts, strict=True):
        assert request.tokens == model.generate(prompt, max_new_tokens=18, do_sample=False)[0].tolist()
    read, first_step, *_ = drafts[requests[1].slot]
    assert read == prompts[1].shape[1]
    assert first_step > 1


@pytest.mark.parametrize("method", METHODS)
def test_a_text_that_outgrows_the_positions_ends_alone(method: str) -> None:
    """gpt2 has no position for its last tokens, and raises."""
    family = BY_NAME["gpt2"]
    model = tiny_model(replace(family, config=family.config | {"n_positions": 24}), "sdpa")
    ids = [torch.tensor([list(range(FIRST_WORD, FIRST_WORD + length))]) for length in (9, 4, 7)]
    plain = [model.generate(prompt, do_sample=False, max_new_tokens=15)[0].tolist() for prompt in ids]
    with lade.Engine(model, slots=3, **METHODS[method](model)) as engine:
        long = engine.submit(ids[0], do_sample=False, max_new_tokens=30)
        others = [engine.submit(prompt, do_sample=False, max_new_tokens=15) for prompt in ids[1:]]
        engine.run()
    assert [request.tokens for request in others] == plain[1:]
    assert isinstance(long.error, IndexError)
    assert long.tokens[: len(plain[0])] == plain[0]
    assert len(long.tokens) == 25


class Raises(StoppingCriteria):
    def __init__(self, at: int) -> None:
        self.at = at

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Any:
        if input_ids.shape[1] >= self.at:
            raise LookupError("enough")
        return torch.zeros(len(input_ids), dtype=torch.bool)


class RaisesToo(LogitsProcessor):
    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        raise LookupError("no scores")


class Breaks:
    """A streamer whose reader went away."""

    def put(self, value: Tensor) -> None:
        if value.dim() == 1:
            raise LookupError("nobody reads")

    def end(self) -> None:
        raise AssertionError("it did not end well")


@pytest.mark.parametrize(
    ("kwargs", "emitted"),
    [
        ({"stopping_criteria": StoppingCriteriaList([Raises(12)])}, 3),
        ({"logits_processor": LogitsProcessorList([RaisesToo()])}, 0),
        ({"streamer": Breaks()}, 1),
    ],
    ids=["criterion", "processor", "streamer"],
)
def test_an_error_ends_its_request_alone(kwargs: dict[str, Any], emitted: int) -> None:
    model = tiny_model(BY_NAME["llama"], "sdpa")
    ids = torch.tensor([list(range(FIRST_WORD, FIRST_WORD + 9))])
    plain = model.generate(ids, do_sample=False, max_new_tokens=30)[0].tolist()
    with lade.Engine(model, CONFIG) as engine:
        good = engine.submit(ids, do_sample=False, max_new_tokens=30)
        engine.step()
        bad = engine.submit(ids, do_sample=False, max_new_tokens=30, **kwargs)
        also_good = engine.submit(ids, do_sample=False, max_new_tokens=30)
        engine.run()
    assert good.tokens == also_good.tokens == plain
    assert isinstance(bad.error, LookupError)
    assert bad.finished
    assert bad.emitted == emitted


def test_a_streamer_gets_what_plain_decoding_puts() -> None:
    model, tokenizer = story()
    ids = tokenizer("One day, a bird", return_tensors="pt").input_ids
    theirs, ours = Recorder(), Recorder()
    plain = model.generate(ids, do_sample=False, max_new_tokens=20, streamer=theirs)
    with lade.Engine(model, CONFIG) as engine:
        request = engine.submit(ids, do_sample=False, max_new_tokens=20, streamer=ours)
        engine.run()
    assert request.tokens == plain[0].tolist()
    assert ours.calls == theirs.calls


def test_stop_strings() -> None:
    model, tokenizer = story()
    ids = tokenizer("One day, a bird", return_tensors="pt").input_ids
    kwargs = {"do_sample": False, "max_new_tokens": 80, "stop_strings": ["."], "tokenizer": tokenizer}
    plain = model.generate(ids, **kwargs)
    with lade.Engine(model, CONFIG) as engine:
        request = engine.submit(ids, **kwargs)
        engine.run()
    assert request.tokens == plain[0].tolist()
    assert request.emitted < 80


def test_other_threads_submit_and_cancel() -> None:
    model = tiny_model(BY_NAME["llama"], "sdpa")
    ids = torch.tensor([list(range(FIRST_WORD, FIRST_WORD + 9))])
    plain = model.generate(ids, do_sample=False, max_new_tokens=12)[0].tolist()
    with lade.Engine(model, CONFIG, slots=2) as engine:
        requests: list[Request] = []

        def user() -> None:
            for turn in range(4):
                request = engine.submit(ids, do_sample=False, max_new_tokens=12)
                if turn == 2:
                    engine.cancel(request)
                else:
                    requests.append(request)

        users = [threading.Thread(target=user) for _ in range(3)]
        for thread in users:
            thread.start()
        while any(thread.is_alive() for thread in users):
            engine.step()
        engine.run()
    assert [request.tokens for request in requests] == [plain] * 9


def test_who_waits_can_be_cancelled_while_no_slot_is_free() -> None:
    model = tiny_model(BY_NAME["llama"], "sdpa")
    with lade.Engine(model, CONFIG, slots=1) as engine:
        first, second, third = (engine.submit(IDS, do_sample=False, max_new_tokens=30) for _ in range(3))
        engine.step()
        engine.cancel(second)
        assert engine.step()
        assert (first.finished, second.finished, third.finished) == (False, True, False)
        engine.run()
    assert second.tokens == IDS[0].tolist()
    assert first.tokens == third.tokens


class Refuses:
    def put(self, value: Tensor) -> None:
        raise LookupError("nobody reads")

    def end(self) -> None:
        raise AssertionError("it has not begun")


@pytest.mark.parametrize("adapt", [True, False])
def test_the_time_of_steps_cuts_prompts_where_sizes_adapt(adapt: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReadingPace, "most", lambda self, rows, unread: 3)
    with lade.Engine(tiny_model(BY_NAME["llama"], "sdpa"), replace(CONFIG, adapt=adapt)) as engine:
        engine.submit(IDS, max_new_tokens=20, do_sample=False)
        engine.step()
        long = engine.submit(IDS.repeat(1, 6), max_new_tokens=1, do_sample=False)
        engine.step()
        assert long.prefilled == (3 if adapt else 18)


def test_a_streamer_that_refuses_the_prompt() -> None:
    with lade.Engine(tiny_model(BY_NAME["llama"], "sdpa"), CONFIG) as engine:
        with pytest.raises(LookupError, match="nobody reads"):
            engine.submit(IDS, do_sample=False, max_new_tokens=5, streamer=Refuses())
        assert not engine.step()


@pytest.mark.parametrize("method", METHODS)
def test_requests_that_have_ended_hold_no_memory(method: str) -> None:
    """However they end, in the model's KV cache and a draft model's, and while the caller keeps them."""
    model = tiny_model(BY_NAME["llama"], "sdpa")
    with lade.Engine(model, slots=3, **METHODS[method](model)) as engine:
        ends: list[dict[str, Any]] = [{}, {"stopping_criteria": StoppingCriteriaList([Raises(12)])}, {}]
        requests = [engine.submit(IDS, do_sample=False, max_new_tokens=20, **kwargs) for kwargs in ends]
        while requests[2].emitted < 5:
            engine.step()
        engine.cancel(requests[2])
        drafter: Any = engine._drafter
        caches = [
            engine._loop.target.cache,
            *([drafter.model.draft.cache] if method in ("draft", "candidates") else []),
        ]  # type: ignore[attr-defined]
        buffers = [weakref.ref(layer.keys) for cache in caches for layer in cache.own_layers()]
        assert all(buffer() is not None for buffer in buffers)
        outputs = [weakref.ref(request.emission.outputs) for request in requests if request.emission is not None]  # type: ignore[attr-defined]
        assert outputs
        engine.run()
        gc.collect()
        assert [cache.lengths for cache in caches] == [{}] * len(caches)
        assert all(kept() is None for kept in (*buffers, *outputs))
        again = engine.submit(IDS, do_sample=False, max_new_tokens=20)
        engine.run()
    assert again.tokens == requests[0].tokens


@pytest.mark.parametrize(("mode", "loads"), [("auto", True), ("lookahead", False)])
def test_an_engine_loads_machine_code_before_its_first_request(
    mode: str, loads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []
    monkeypatch.setattr(compiling, "begin", lambda: begun.append(1))
    with lade.Engine(tiny_model(BY_NAME["llama"]), lade.LookaheadConfig(mode=mode)):
        assert bool(begun) == loads


def test_nothing_is_left() -> None:
    """Slots, hooks, and what was registered with transformers."""
    model = tiny_model(BY_NAME["llama"], "sdpa")
    ids = torch.tensor([list(range(FIRST_WORD, FIRST_WORD + 9))])
    hooks = [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()]
    own = [set(vars(module)) for module in model.modules()]
    with lade.Engine(model, CONFIG) as engine:
        engine.submit(ids, do_sample=False, max_new_tokens=5)
        engine.run()
        target: Any = engine._loop.target
        assert target.cache.lengths == {}
        engine.submit(ids, do_sample=False, max_new_tokens=5)
        engine.step()
    assert target.cache.lengths == {}
    assert [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()] == hooks
    assert [set(vars(module)) for module in model.modules()] == own


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"slots": 0}, "slots must be an integer of at least 1 and at most 4096, got 0"),
        ({"slots": True}, "slots must be an integer of at least 1 and at most 4096, got True"),
        ({"prefix_bytes": -1}, "prefix_bytes must be an integer of at least 0, got -1"),
        ({"kv_bytes": 0}, "kv_bytes must be None or an integer of at least 1, got 0"),
        ({"kv_bytes": 1.5}, "kv_bytes must be None or an integer of at least 1, got 1.5"),
        ({"config": 3}, "config must be"),
        ({"config": lade.LookaheadConfig(workers=2)}, "workers must be 1 for an engine, .*, got 2"),
        ({"method": 3}, "method must be"),
    ],
    ids=str,
)
def test_wrong_arguments(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lade.Engine(tiny_model(BY_NAME["llama"], "sdpa"), **wrong)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"input_ids": [[5, 6]]}, "input_ids must be a tensor"),
        ({"input_ids": torch.tensor([[5], [6]])}, "input_ids must hold one prompt, got 2"),
        ({"input_ids": torch.tensor([[VOCAB]])}, "input_ids must hold token ids from 0"),
        ({"seed": -1}, "seed must be None or an integer from 0"),
        ({"streamer": 3}, "streamer must be"),
        ({"tokenizer": 3}, "tokenizer must be"),
        ({"tenant": ""}, "tenant must be"),
        ({"reference": [-1]}, "reference must hold token ids"),
        ({"corpus": [[1]]}, "corpus must be a lade.Corpus, the path of one, or None, got "),
        ({"corpus": ""}, "corpus must be a path"),
        ({"corpus": "/none"}, "corpus='/none': there is no such file"),
        ({"num_return_sequences": 2}, "num_return_sequences must be None or 1, got 2"),
        ({"return_dict_in_generate": True}, "return_dict_in_generate must be None or False, got True"),
        ({"position_ids": torch.tensor([[1, 2, 3]])}, "position_ids must be None"),
        ({"attention_mask": torch.tensor([[1, 0, 1]])}, "attention_mask must have no zeros behind ones"),
        ({"input_ids": torch.tensor([[5, PAD, 6]])}, "takes the padding tokens of a prompt for padding"),
        ({"num_beams": 2}, "num_beams must be 1"),
        ({"stop_strings": ["."]}, "tokenizer must be the model's tokenizer"),
        ({"use_cache": False}, "use_cache=False"),
    ],
    ids=str,
)
def test_wrong_requests(wrong: dict[str, Any], message: str) -> None:
    with lade.Engine(tiny_model(BY_NAME["llama"], "sdpa"), CONFIG) as engine:
        with pytest.raises(ValueError, match=message):
            engine.submit(**({"input_ids": IDS, "max_new_tokens": 5} | wrong))
        assert not engine.step()


def test_a_corpus_of_another_vocabulary() -> None:
    engine = lade.Engine(tiny_model(BY_NAME["llama"], "sdpa"), CONFIG)
    with engine, pytest.raises(ValueError, match=f"^corpus: its tokens must be below {VOCAB}, .*, got {VOCAB}$"):
        engine.submit(IDS, corpus=lade.Corpus([[VOCAB]]))


def test_a_mode_without_corpora() -> None:
    engine = lade.Engine(tiny_model(BY_NAME["llama"], "sdpa"), lade.LookaheadConfig(mode="lookahead"))
    with engine, pytest.raises(ValueError, match="mode must be 'auto' where corpus is given, got 'lookahead'"):
        engine.submit(IDS, corpus=lade.Corpus([[1]]))


def test_each_request_drafts_from_its_own_corpus(tmp_path: Path) -> None:
    """Beside one another. Its own one takes the place of the settings' one."""
    model, prompts = tiny_model(BY_NAME["llama"], "sdpa"), [torch.tensor([[token]]) for token in (9, 10, 11)]
    first, second, third = texts = [model.generate(ids, do_sample=False, max_new_tokens=40).tolist() for ids in prompts]
    lade.Corpus(second).save(tmp_path / "settings")
    lade.Corpus(third).save(tmp_path / "third")
    config = replace(CONFIG, sources=("corpus",), corpus=tmp_path / "settings")
    with lade.Engine(model, config) as engine:
        given = (
            (0, lade.Corpus(first)),
            (1, None),
            (2, tmp_path / "third"),
            (0, lade.Corpus(third)),
            (1, lade.Corpus(first)),
        )
        requests = [
            engine.submit(prompts[each], do_sample=False, max_new_tokens=40, corpus=corpus) for each, corpus in given
        ]
        engine.run()
    assert [request.tokens for request in requests] == [texts[each][0] for each, _ in given]
    steps = [request.tally.lengths.total() for request in requests]
    assert steps[:3] == [3, 3, 3], "each tree holds what follows"
    assert min(steps[3:]) > 20, "another text says little"


def test_a_model_that_cannot_branch() -> None:
    from unbranchable import UNBRANCHABLE

    family = UNBRANCHABLE[0]
    with pytest.raises(ValueError, match="model must be one that decodes draft trees"):
        lade.Engine(tiny_model(family, family.attention[-1]))


def test_families_with_several_slots() -> None:
    """Some families decode rows of a batch together, but not rows at different places."""
    model = copy.deepcopy(tiny_model(BY_NAME["llama4"], BY_NAME["llama4"].attention[-1]))
    model.config.floor_scale = 16
    with lade.Engine(model, CONFIG) as engine, pytest.raises(ValueError, match="attention temperature"):
        engine.submit(IDS, do_sample=False, max_new_tokens=20)
    with lade.Engine(model, CONFIG, slots=1) as engine:
        request = engine.submit(IDS, do_sample=False, max_new_tokens=20)
        engine.run()
    assert request.tokens == model.generate(IDS, do_sample=False, max_new_tokens=20)[0].tolist()


def test_what_is_no_request_is_not_cancelled() -> None:
    engine = lade.Engine(tiny_model(BY_NAME["llama"]), CONFIG)
    with engine, pytest.raises(ValueError, match="request must be one that `submit` returned, got 5"):
        engine.cancel(5)  # type: ignore[arg-type]


def test_close_inside_a_step_is_refused() -> None:
    """That ends the request whose streamer asks for it, and no other."""
    model = tiny_model(BY_NAME["llama"], "sdpa")

    class Closing:
        prompt = True

        def put(self, value: Tensor) -> None:
            if not self.prompt:
                engine.close()
            self.prompt = False

        def end(self) -> None: ...

    kwargs: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False}
    with lade.Engine(model, CONFIG) as engine:
        closing, other = engine.submit(IDS, streamer=Closing(), **kwargs), engine.submit(IDS, **kwargs)
        engine.run()
    assert str(closing.error) == "close must be called between steps, got a call inside of one"
    assert other.tokens == model.generate(IDS, **kwargs)[0].tolist()
