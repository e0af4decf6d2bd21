"""Models whose head is wider than their embedding: ids without an embedding are drafted by nothing, the text is plain
decoding's."""

import copy
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from families import BY_NAME, VOCAB
from tiny import tiny_model, words
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedModel

import lade
from lade.core.tree import TreeBuilder
from lade.facts.vocabulary import readable, writable
from lade.memory.pools import drop_pools

WIDTH = VOCAB + 16  # of the head
NEW_TOKENS = 24
PAPER = lade.LookaheadConfig(mode="lookahead", ngram=4, window=6, guesses=6, pool_from_prompt=True)
AUTO = lade.LookaheadConfig(mode="auto", budget=32, adapt=False)


@pytest.fixture(autouse=True)
def folder(table_folder: Path) -> Path:
    return table_folder


@cache
def wide(name: str = "llama", seed: int = 0, skew: float = 2.0) -> PreTrainedModel:
    """Half of what it finds likeliest has no embedding."""
    model = copy.deepcopy(tiny_model(BY_NAME[name], "sdpa"))
    generator = torch.Generator().manual_seed(seed)
    head = torch.nn.Linear(model.config.hidden_size, WIDTH, bias=False)
    with torch.no_grad():
        head.weight[:VOCAB] = model.lm_head.weight
        extra = torch.randn(WIDTH - VOCAB, head.in_features, generator=generator)
        head.weight[VOCAB:] = skew * extra * model.lm_head.weight.std()
    model.lm_head = head
    return model


class OnlyReadable(LogitsProcessor):
    """Forbids ids without an embedding."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return torch.cat([scores[:, :VOCAB], torch.full_like(scores[:, VOCAB:], -torch.inf)], dim=1)


def asked(**more: Any) -> dict[str, Any]:
    processors = LogitsProcessorList([OnlyReadable()])
    return words(9) | {"max_new_tokens": NEW_TOKENS, "do_sample": False, "logits_processor": processors} | more


def assert_same(model: PreTrainedModel, **kwargs: Any) -> None:
    given = asked(**{name: kwargs.pop(name) for name in ("do_sample", "suppress_tokens") if name in kwargs})
    torch.manual_seed(2)
    theirs = model.generate(**given)
    torch.manual_seed(2)
    assert lade.generate(model, **given, **kwargs).tolist() == theirs.tolist()
    stats = lade.last_stats()
    assert stats is not None
    assert stats.fallback is None
    assert stats.forward_tokens > stats.steps


def test_sizes() -> None:
    assert (readable(wide()), writable(wide())) == (VOCAB, WIDTH)
    assert wide()(**words(9)).logits[0].argmax(-1).max() >= VOCAB


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("config", [PAPER, AUTO], ids=("paper", "auto"))
def test_recycled_predictions_and_windows(config: lade.LookaheadConfig, sampled: bool) -> None:
    assert_same(wide(), config=config, do_sample=sampled)


@pytest.mark.parametrize("source", ["suffix", "recycled", "window", "reference"])
def test_every_source_alone(source: str) -> None:
    config = lade.LookaheadConfig(mode="auto", budget=32, adapt=False, sources=(source,))
    reference = {"reference": words(60, seed=4)["input_ids"][0]} if source == "reference" else {}
    assert_same(wide(), config=config, **reference)


@pytest.mark.usefixtures("short_texts")
def test_warm_table() -> None:
    model = wide(seed=3)
    table = lade.warm_up(model)
    assert int(table.tokens.max()) < VOCAB
    assert_same(model, config=lade.LookaheadConfig(mode="auto", budget=32, adapt=False, sources=("warm",)))


def test_pools_are_kept_and_loaded(tmp_path: Path) -> None:
    model, config = wide(), lade.LookaheadConfig(mode="auto", budget=32, adapt=False, tenant="a")
    assert_same(model, config=config)
    lade.save_pool(model, tmp_path / "pool", tenant="a")
    drop_pools(model)
    lade.load_pool(model, tmp_path / "pool", tenant="a")
    assert_same(model, config=config)


METHODS: dict[str, Callable[[], Any]] = {
    "draft model": lambda: lade.DraftModel(wide("qwen2"), tokens=4),
    "narrow draft model": lambda: lade.DraftModel(tiny_model(BY_NAME["qwen2"], "sdpa"), tokens=4),
    "many candidates": lambda: lade.MultiCandidate(wide("qwen2"), widths=(4, 2)),
    "itself": lambda: lade.SelfSpeculative(((1,), (0,)), adapt="fixed"),
}


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_methods(method: Callable[[], Any]) -> None:
    assert_same(wide(), method=method())


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_methods_that_draw(method: Callable[[], Any]) -> None:
    """Another law than plain decoding's draws, but never an id that it forbids."""
    out = lade.generate(wide(), **asked(do_sample=True), method=method())
    assert int(out.max()) < VOCAB
    assert lade.last_stats().fallback is None


def test_amateurs() -> None:
    """One that reads fewer ids than the expert: what it cannot read is not drafted either."""
    expert = copy.deepcopy(wide())
    expert.set_input_embeddings(torch.nn.Embedding(WIDTH, expert.config.hidden_size))
    with torch.no_grad():
        expert.get_input_embeddings().weight[:VOCAB] = wide().get_input_embeddings().weight
    contrast = lade.Contrast(wide("qwen2"))
    one = lade.LookaheadConfig(budget=1)
    plain = lade.generate(expert, **asked(), contrast=contrast, config=one)
    assert lade.generate(expert, **asked(), contrast=contrast, config=AUTO).tolist() == plain.tolist()


def test_the_last_token_may_have_no_embedding() -> None:
    """Plain decoding reads it only if it goes on; then it fails, and so does lookahead."""
    model = wide(skew=20.0)
    assert int(model(**words(9)).logits[0, -1].argmax()) >= VOCAB
    kwargs = words(9) | {"do_sample": False}
    assert (
        lade.generate(model, **kwargs, max_new_tokens=1).tolist() == model.generate(**kwargs, max_new_tokens=1).tolist()
    )
    for decode in (model.generate, lambda **given: lade.generate(model, **given)):
        with pytest.raises(IndexError):
            decode(**kwargs, max_new_tokens=4)


def test_a_draft_within_a_vocabulary() -> None:
    builder = TreeBuilder(3)
    builder.add_path(0, [1, 7, 2], "a")
    builder.add_path(0, [7, 1], "b")
    draft = builder.build()
    assert draft.within(10) is draft
    within = draft.within(7)
    assert within.tokens == [3, 1, 3, 2, 3, 1]
    assert (within.parents, within.queries) == (draft.parents, draft.queries)
    assert within.children == {(0, 1): 1, (2, 2): 3, (4, 1): 5}
    assert (within.child(0, 3), within.child(1, 3), within.child(2, 2)) == (None, None, 3)


# References


@pytest.mark.parametrize("wrong", [VOCAB, 10**6, 2**63, 2**80])
@pytest.mark.parametrize("texts", [lambda wrong: [3, wrong, 4], lambda wrong: [[3, wrong]]], ids=("one", "per prompt"))
def test_a_reference_outside_the_vocabulary(
    texts: Callable[[int], Any], wrong: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, kwargs = tiny_model(BY_NAME["llama"], "sdpa"), words(9) | {"do_sample": False, "max_new_tokens": 4}
    monkeypatch.setattr(type(model), "forward", lambda *args, **kwargs: pytest.fail("the model ran"))
    message = f"reference must hold token ids from 0 to {VOCAB - 1}, got {wrong}"
    with pytest.raises(ValueError, match=message):
        lade.generate(model, **kwargs, reference=texts(wrong))
    with pytest.raises(ValueError, match=message), lade.lookahead(model, reference=texts(wrong)):
        pass
    with pytest.raises(ValueError, match=message):
        model.generate(**kwargs, custom_generate=lade.decoding_method(reference=texts(wrong)))


def test_the_last_id_of_the_vocabulary_is_one() -> None:
    model, kwargs = tiny_model(BY_NAME["llama"], "sdpa"), words(9) | {"do_sample": False, "max_new_tokens": 4}
    plain = model.generate(**kwargs)
    assert lade.generate(model, **kwargs, reference=[VOCAB - 1] * 3).tolist() == plain.tolist()
